"""What is measured: found by the engine, or typed."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.tools.bench.results.result import identity
from tests.orch_sidecar.tools.facts.snapshots import snapshot

ALL = {"engine": "vLLM 0.33.0", "precision": "BF16", "gpu": "H100", "gpu_count": 2}


def test_identity_is_what_the_engine_reports() -> None:
    found, _ = identity("tiny", snapshot(gpu="H100", gpu_count=1, precision="BF16"), {})
    assert found.engine == "vLLM 0.32.0"
    assert (found.gpu, found.gpu_count, found.precision) == ("H100", 1, "BF16")
    assert (found.profile, found.pool, found.slots_total) == ("cloud", "cloud", 8)
    assert (found.weights, found.conditions) == ("/models/tiny", snapshot().conditions)
    assert (found.given, found.missing) == ([], [])


@pytest.mark.parametrize(
    ("given", "both"),
    [
        ({"gpu": "NVIDIA H100"}, ("'NVIDIA H100'", "'CPU (test)'")),
        ({"gpu_count": 8}, ("--gpu-count 8", "reports 0")),
        ({"precision": "BF16"}, ("'BF16'", "'FP32'")),
        ({"engine": "vLLM 0.33.0"}, ("'vLLM 0.33.0'", "'vLLM 0.32.0'")),
        ({"model_id": "org/70B"}, ("'org/70B'", "the engine serves tiny")),
    ],
)
def test_given_value_that_contradicts_the_report_is_an_error_and_not_taken(
    given: dict[str, Any], both: tuple[str, str]
) -> None:
    found, [text] = identity("tiny", snapshot(), given)
    assert all(each in text for each in both)
    columns = (found.engine, found.gpu, found.gpu_count, found.precision)
    assert columns == ("vLLM 0.32.0", "CPU (test)", 0, "FP32")
    assert found.given == [name for name in given if name == "model_id"]


def test_given_values_that_the_engine_reports_are_not_given() -> None:
    reported = snapshot(weights="org/tiny")
    given = {
        "engine": "vllm 0.32.0", "precision": "fp32", "gpu": "CPU (test)", "gpu_count": 0,
        "model_id": "org/tiny",
    }  # fmt: skip
    found, wrong = identity("tiny", reported, given)
    assert (found.engine, found.precision, found.model_id) == ("vLLM 0.32.0", "FP32", "org/tiny")
    assert (found.given, wrong) == ([], [])


def test_model_that_the_engine_knows_by_paths_only_is_given() -> None:
    reported = snapshot(models=["/models/m"], weights="/models/m")
    found, wrong = identity("/models/m", reported, {"model_id": "org/m"})
    assert (found.model_id, found.given, wrong) == ("org/m", ["model_id"], [])
    assert identity("/models/m", reported, {})[0].missing


def test_display_name_is_given_unless_it_is_the_last_part_of_the_id() -> None:
    for name, given in (("Tiny", ["model_name"]), ("tiny", [])):
        found, _ = identity("tiny", snapshot(), {"model_name": name})
        assert (found.model_name, found.given) == (name, given)


def test_identity_without_a_report_is_what_is_given() -> None:
    found, _ = identity("org/tiny", None, ALL)
    assert (found.engine, found.gpu) == ("vLLM 0.33.0", "H100")
    assert (found.model_id, found.model_name) == ("org/tiny", "tiny")
    assert found.given == ["engine", "precision", "gpu", "gpu_count"]
    assert found.conditions is None
    assert found.missing == []
    assert identity("tiny", None, {"gpu": "H100", "gpu_count": 0})[0].missing == [
        "the endpoint does not report its hardware and engine: give --engine, --precision"
    ]


@pytest.mark.parametrize("model", ["/models/llama", "./llama", "~/llama"])
def test_path_of_a_model_is_not_an_id(model: str) -> None:
    missing = [f"the model {model!r} is a path: give --model-id"]
    assert identity(model, None, ALL)[0].missing == missing
    found, _ = identity(model, None, {**ALL, "model_id": "org/llama"})
    assert found.missing == []
    assert (found.model, found.model_id, found.model_name) == (model, "org/llama", "llama")

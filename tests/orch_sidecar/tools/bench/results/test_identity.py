"""Who is measured: told by the engine, or typed."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.bench.results.identity import IdentityOverrides, identity, missing_identity
from tests.orch_sidecar.tools.facts.snapshots import snapshot

ALL = IdentityOverrides(engine="vLLM 0.33.0", precision="BF16", gpu="H100", gpu_count=2)


def test_identity_is_what_the_engine_reports() -> None:
    told = identity(
        "tiny", snapshot(gpu="H100", gpu_count=1, precision="BF16"), IdentityOverrides()
    )
    assert (told.engine, told.engine_version) == ("vllm", "0.32.0")
    assert (told.gpu, told.gpu_count, told.precision) == ("H100", 1, "BF16")
    assert (told.profile, told.pool, told.slots_total) == ("cloud", "cloud", 8)
    assert told.given == []
    assert missing_identity(told) == []


def test_given_values_take_precedence_and_are_listed() -> None:
    told = identity("tiny", snapshot(gpu_count=1), IdentityOverrides(gpu_count=0, gpu="CPU (x)"))
    assert (told.gpu, told.gpu_count) == ("CPU (x)", 0)
    assert told.engine == "vllm"
    assert told.given == ["gpu", "gpu_count"]


def test_identity_without_a_report_is_what_is_given() -> None:
    told = identity("org/tiny", None, ALL)
    assert (told.engine, told.engine_version, told.gpu) == ("vLLM", "0.33.0", "H100")
    assert (told.model_id, told.model_name) == ("org/tiny", "tiny")
    assert told.given == ["engine", "precision", "gpu", "gpu_count"]
    assert missing_identity(told) == []


def test_missing_identity_is_listed_with_its_options() -> None:
    told = identity("tiny", None, IdentityOverrides(gpu="H100", gpu_count=0))
    assert missing_identity(told) == [
        "the endpoint does not report its hardware and engine: give --engine, --precision"
    ]


@pytest.mark.parametrize("model", ["/models/llama", "./llama", "~/llama"])
def test_path_of_a_model_is_not_an_id(model: str) -> None:
    assert missing_identity(identity(model, None, ALL)) == [
        f"the model {model!r} is a path: give --model-id"
    ]
    named = IdentityOverrides(
        **{name: getattr(ALL, name) for name in ALL.names}, model_id="org/llama"
    )
    told = identity(model, None, named)
    assert missing_identity(told) == []
    assert (told.model, told.model_id, told.model_name) == (model, "org/llama", "llama")

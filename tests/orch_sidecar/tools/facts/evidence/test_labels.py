"""Runs at the edge of what a label requires, by files of other tools and by `orch bench`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from orch_sidecar.tools.bench.results.fact import row_of
from orch_sidecar.tools.bench.results.result import IdentityOverrides, contradictions
from orch_sidecar.tools.facts.tables.row import Label, Row, parse_notes
from tests.orch_sidecar.tools.bench.sample_results import OFFLINE, result
from tests.orch_sidecar.tools.facts.cheats.altered_files import counted, files, outcome
from tests.orch_sidecar.tools.facts.cheats.runs import AT_ONCE, CALLS, STEPS
from tests.orch_sidecar.tools.facts.snapshots import snapshot

CLOUD = "vllm_bench_cloud"


def test_file_whose_tokens_are_those_of_the_engine_makes_a_row() -> None:
    given = files(CLOUD)
    counted(given)
    assert outcome(CLOUD, given) == outcome(CLOUD, files(CLOUD))


def test_file_of_requests_for_several_sequences_has_no_tpot() -> None:
    """Its tokens per request are those of all sequences, and the length of none is known."""
    given = files(CLOUD)
    given.file |= {"request_rate": "inf", "max_concurrency": 2}
    made = outcome(CLOUD, given)
    assert isinstance(made, Row), made
    notes = parse_notes(made.scenario_notes)
    assert (notes["at_once"], notes["batch_max"]) == ("2", "5")
    assert "ttft_p50_ms" in notes
    assert [name for name in notes if name.startswith("tpot")] == []


def test_offline_run_that_memory_or_prompts_limited_keeps_its_label() -> None:
    """What the engine can do at most is what offline measures."""
    full = {"measurement_type": "offline", "requests_total": 110}
    limits: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
        ({}, {"steps_by_batch": STEPS, "preemptions_total": 3}),
        ({"kv_tokens_total": 300}, {"steps_by_batch": STEPS, "kv_tokens_total": 300}),
        ({}, {"steps_by_batch": {"1": [20, 0.2], "4": [8, 0.4]}}),  # most steps read prompts
    )
    for before, after in limits:
        first = snapshot(measurement_type="offline", **before)
        found = result(AT_ONCE, OFFLINE, before=first, after=snapshot(**full | after))
        assert found.reasons == []
    roomy = {"kv_tokens_total": 3000}
    first = snapshot(measurement_type="offline", **roomy)
    found = result(
        AT_ONCE, OFFLINE, before=first, after=snapshot(**full | roomy | {"steps_by_batch": STEPS})
    )
    assert len(found.reasons) == 1


CLAIMS: Final = {
    "hardware": IdentityOverrides(gpu="NVIDIA H100", gpu_count=8),
    "a precision": IdentityOverrides(precision="BF16"),
    "an engine": IdentityOverrides(engine="vLLM 0.99.0"),
    "a model": IdentityOverrides(model_id="meta-llama/Llama-3.1-70B-Instruct"),
}


@pytest.mark.parametrize("given", CLAIMS.values(), ids=CLAIMS)
def test_claim_that_the_engine_contradicts_is_in_no_row(given: IdentityOverrides) -> None:
    """`measure` ends with these before anything is sent; what is reported wins in any case."""
    assert contradictions(snapshot(), given) != []
    made = result(CALLS, given=replace(given, model_id=None))
    row = row_of(made)
    assert (row.engine, row.gpu, row.gpu_count) == ("vLLM 0.32.0", "CPU (test)", 0)
    assert row.precision == "FP32"
    assert row.measurement_type is Label.BATCHED_ONLINE

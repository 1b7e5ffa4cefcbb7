"""Runs at the edge of what a label requires, by files of other tools and by `orch bench`."""

from __future__ import annotations

from typing import Any

from orch_sidecar.tools.facts.tables.row import Row, parse_notes
from tests.orch_sidecar.tools.bench.sample_results import OFFLINE, result
from tests.orch_sidecar.tools.facts.cheats.imports import counted, files, outcome
from tests.orch_sidecar.tools.facts.cheats.runs import AT_ONCE, STEPS
from tests.orch_sidecar.tools.facts.snapshots import snapshot

CLOUD = "vllm_bench_cloud"


def test_file_whose_tokens_are_those_of_the_engine_makes_a_row() -> None:
    given = files(CLOUD)
    counted(given)
    assert outcome(CLOUD, given) == outcome(CLOUD, files(CLOUD))


def test_file_of_requests_for_several_sequences_has_no_tpot() -> None:
    """Its tokens per request are those of all sequences, and the length of none is known."""
    given = files(CLOUD)
    given.file |= {"request_rate": "inf", "max_concurrency": 5}
    steps = given.after["engines"][0]["steps_by_batch"]
    steps["6"] = steps.pop("5")
    made = outcome(CLOUD, given)
    assert isinstance(made, Row), made
    notes = parse_notes(made.scenario_notes)
    assert (notes["at_once"], notes["batch_max"]) == ("5", "6")
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

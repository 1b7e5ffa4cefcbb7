"""The engine of a plan, from rows of facts and from a running engine's own report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.sizing.engine_model import NotEnough, memory_bound
from orch_sidecar.tools.sizing.fleet import of_capabilities, of_facts
from tests.orch_sidecar.tools.sizing.rows import BATCHES, PREFILL, row, step_ms

ENTRY: dict[str, Any] = {
    "epoch": "e", "slots_total": 32, "foreign": 0, "ctx_max": 2048, "gpu": "H100",
    "kv_blocks_total": 1000, "kv_groups": [{"count": 1, "block_tokens": 16}],
    "kv_tokens_total": 16_000, "prefill_tokens_per_s": 9000.0,
    "features": {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 256},
    "step_time": {
        "t0_ms": 8.0, "c_ms": 0.4, "alpha": 1.0, "samples": 900, "largest": 16, "tokens": 2.0,
        "error": 0.03, "quality": "good",
    },
}  # fmt: skip


def test_step_time_is_that_between_tokens_without_the_prompts() -> None:
    found = of_facts([row(batch) for batch in BATCHES], None)
    assert found.prefill_tokens_per_s == pytest.approx(PREFILL, rel=1e-4)
    for batch in (1, 8, 64):
        assert found.curve.at(batch) == pytest.approx(step_ms(batch), rel=0.02)
    assert "4 rows of org/model on vLLM 0.32.0, H100" in found.source


def test_rows_of_several_engines_must_be_selected_from() -> None:
    rows = [*(row(batch) for batch in BATCHES), *(row(batch, "A100") for batch in BATCHES)]
    with pytest.raises(NotEnough, match=r"A100, 1; .*H100, 1; select with --model-id and --gpu"):
        of_facts(rows, None)
    assert of_facts(rows, model_id="model", gpu="A100").curve.at(4) > 0
    with pytest.raises(NotEnough, match="but has: none"):
        of_facts(rows, model_id="other")


def test_what_is_missing_is_named() -> None:
    with pytest.raises(NotEnough, match="the table has rows of these batches only: 2, 4; a curve"):
        of_facts([row(2), row(4)], None)
    unknown = [replace(row(4), scenario_notes="input_tokens=1; output_tokens=1; batching=on")]
    with pytest.raises(NotEnough, match="give --prefill-rate"):
        of_facts(unknown, None)
    unconfirmed = [replace(each, measurement_type=Label.TO_BE_CONFIRMED) for each in unknown]
    with pytest.raises(NotEnough, match="none"):
        of_facts(unconfirmed, 1000.0)


def test_running_engine_reports_its_own_model() -> None:
    found = of_capabilities(ENTRY, 100)
    assert found.curve.at(10) == pytest.approx(6.0), "two tokens per step"
    assert (found.curve.largest, found.prefill_tokens_per_s) == (16, 9000.0)
    assert found.memory == memory_bound(ENTRY, 100)
    assert (found.step_tokens, found.chunk_tokens) == (2048, 256)


def test_memory_is_what_the_engine_reports_of_its_own_blocks() -> None:
    found, longest = memory_bound(ENTRY, 100), memory_bound(ENTRY, 10_000)
    assert found is not None
    assert (found.sequences, found.kv_tokens) == (142, 16_000)  # of 7 blocks each
    assert found.text == "KV cache of 16000 tokens: 142 sequences of 100 tokens"
    assert longest is not None
    assert (longest.tokens, longest.sequences) == (2048, 7)  # of 128 blocks
    assert memory_bound({**ENTRY, "kv_groups": []}, 130) is None


def test_steps_that_the_fit_leaves_out_count_in_the_plan() -> None:
    """A tenth of the steps and of the prompt tokens took 11 times as long."""
    steps = {str(batch): [100, 0.1 * 2 * (8 + 0.4 * batch)] for batch in (1, 4, 16)}
    prefill = {"tokens": 18_000, "seconds": 4.0}
    found = of_capabilities({**ENTRY, "steps_by_batch": steps, "prefill": prefill}, 100)
    assert found.curve.at(10) == pytest.approx(12.0)
    assert found.prefill_tokens_per_s == 4500.0
    few = {batch: [5, 1.0] for batch in steps}
    assert of_capabilities({**ENTRY, "steps_by_batch": few}, 100).curve.at(10) == pytest.approx(6)


def test_engine_without_a_good_fit_is_modelled_by_all_its_steps() -> None:
    steps = {str(batch): [50, 50 * (8 + batch) / 1000] for batch in (1, 2, 4, 8)}
    poor = {**ENTRY["step_time"], "quality": "poor"}
    found = of_capabilities({**ENTRY, "step_time": poor, "steps_by_batch": steps}, 100)
    assert found.curve.at(6) == pytest.approx(14.0, rel=0.01)


def test_engine_that_has_measured_nothing_makes_no_plan() -> None:
    with pytest.raises(NotEnough, match="measured its prefill yet: run `orch tune`"):
        of_capabilities({**ENTRY, "prefill_tokens_per_s": None}, 100)
    with pytest.raises(NotEnough, match="run `orch tune`"):
        of_capabilities({**ENTRY, "step_time": None}, 100)

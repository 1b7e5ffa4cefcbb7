"""The slots and the step size that follow from a curve."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.sizing.decision import Binds, Decision, decide, largest_within
from orch_sidecar.tools.sizing.engine_model import (
    EngineModel,
    MemoryBound,
    NotEnough,
    StepCurve,
    curve_of,
    steps_between,
)
from tests.orch_sidecar.tools.sizing.rows import curve, full


def decided(
    found: StepCurve, memory: MemoryBound | None, slo: float | None, prefill: float | None, now: int
) -> Decision:
    """Decides for traffic whose prompts take no time."""
    return decide(EngineModel("", found, prefill, memory), full(found), slo, now)


def test_curve_is_that_of_the_steps_between_two_reports() -> None:
    before = {"steps_by_batch": {"1": [100, 1.0], "4": [10, 0.2]}}
    after = {"steps_by_batch": {"1": [200, 2.0], "2": [50, 0.6], "4": [110, 1.6], "8": [3, 0.1]}}
    found = steps_between(before, after)
    assert {batch: steps for batch, (steps, _) in found.items()} == {1: 100, 2: 50, 4: 100, 8: 3}
    assert [seconds for _, seconds in found.values()] == pytest.approx([1.0, 0.6, 1.4, 0.1])
    made = curve_of([found, {1: (300, 4.2)}])
    assert [(point.batch, point.steps) for point in made.points] == [(1, 400), (2, 50), (4, 100)]
    assert made.points[0].ms == pytest.approx(13.0)


def test_too_few_batches_make_no_curve() -> None:
    with pytest.raises(NotEnough, match=r"these batches only: 1, 2; .* raise the length"):
        curve_of([{1: (9, 0.045), 2: (9, 0.054), 4: (4, 0.028)}])
    with pytest.raises(NotEnough, match="only: none"):
        curve_of([])


def test_slots_are_bound_by_the_slo_of_the_time_per_token() -> None:
    found = decided(curve(10.0, 1.0), None, 42.1, None, 64)
    assert (found.by_slo, found.binds) == (32, Binds.SLO)
    assert found.slots == 27  # 95 % of the tokens/s of 32
    assert largest_within(full(curve(10.0, 1.0)), 10.9, 64) == 0


def test_slots_are_bound_by_the_memory() -> None:
    found = decided(curve(10.0, 0.1), MemoryBound(512, 12, 10_000), 100.0, None, 64)
    assert (found.slots, found.binds) == (12, Binds.MEMORY)
    assert found.doubts == ()


def test_slots_beyond_saturation_are_not_worth_having() -> None:
    found = decided(curve(2.0, 1.0), None, None, None, 64)
    assert found.binds is Binds.THROUGHPUT
    rates = [curve(2.0, 1.0).tokens_per_s(b) for b in (found.slots, 128)]
    assert 0.94 * rates[1] < rates[0] < rates[1]


def test_engine_with_too_few_slots_is_to_be_tuned_with_more() -> None:
    found = decided(curve(50.0, 0.1, largest=8), None, None, None, 8)
    assert (found.slots, found.binds) == (16, Binds.MEASURED)
    assert any("--max-num-seqs 32" in doubt for doubt in found.doubts)


def test_step_with_prompts_keeps_the_slo() -> None:
    slow = decided(curve(10.0, 0.1), None, 60.0, 10_000.0, 64)
    assert slow.step_tokens == 256  # 10 tokens per ms in the 40 ms that are left
    fast = decided(curve(10.0, 0.1), None, 60.0, 1_000_000.0, 64)
    assert fast.step_tokens == 16_384
    assert decided(curve(10.0, 0.1), None, 60.0, None, 64).step_tokens is None
    memory = MemoryBound(512, 320, 10_000)
    many = decided(curve(10.0, 0.001, largest=512), memory, None, 100.0, 512)
    assert many.step_tokens == many.slots > 256


def test_doubts_are_named() -> None:
    steps = {b: (20, 0.02 * (10.0 + b)) for b in (1, 2, 4)} | {8: (20, 1.2)}
    found = decided(curve_of([steps]), None, 5.0, None, 8)
    assert (found.by_slo, found.slots) == (0, 1)
    text = " ".join(found.doubts)
    causes = ("off by up to", "fewer than 64 steps", "one slot does not batch", "no batch keeps")
    for cause in causes:
        assert cause in text


def test_prompts_take_the_gain_of_more_slots() -> None:
    """Of 64 tokens out and 512 in at 1000 per second the engine reads most of the time."""
    alone = decided(curve(10.0, 1.0), None, None, None, 64)
    model = EngineModel("", curve(10.0, 1.0), 1000.0)
    found = decide(model, full(model.curve, 1000.0, 512.0), None, 64)
    assert found.slots < alone.slots / 2
    assert found.binds is Binds.THROUGHPUT


def test_prompts_of_others_count_against_the_slo() -> None:
    step_ms = 10.0 + 32
    found = full(curve(10.0, 1.0), 10_000.0, 512.0)
    alone = full(curve(10.0, 1.0))
    assert alone.tpot_p95_ms(32) == pytest.approx(step_ms)
    # 31 prompts of 51 ms beside the 64 tokens of each request; those in one step count once.
    assert found.tpot_p95_ms(32) > 1.2 * step_ms
    assert largest_within(found, step_ms, 64) < largest_within(alone, step_ms, 64)


def test_measured_times_per_token_count() -> None:
    found = full(curve(10.0, 1.0))
    found.measured([(2, 1.4 * 12.0), (4, 1.5 * 14.0), (8, 9.0 * 18.0)])
    assert found.late == pytest.approx(1.5)
    assert found.tpot_p95_ms(32) == pytest.approx(1.5 * 42.0)
    found.measured([])
    assert found.late == 1.0
    found.measured([(2, 6.0)])
    assert found.late == 1.0, "never below what the steps take"

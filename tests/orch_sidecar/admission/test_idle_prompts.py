"""When prompts of idle requests are sent, when they are cut, and what they cost others."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.constraints.idle import MAX_CUTS
from tests.orch_sidecar.admission.examples import fill, interactive, queue, reason, report
from tests.orch_sidecar.admission.test_idle import MEASURED, STEP, core_with, idle


def test_a_prompt_waits_until_no_other_is_unread() -> None:
    core = core_with(8, **MEASURED)
    fill(core, interactive(prompt_tokens=5000, max_tokens=5), "i", at=1.0)
    core.engine_reports(report(8, **MEASURED, prefilling=1, scheduled=1), 1.0)
    queue(core, idle(prompt_tokens=100), "row", at=1.1)
    assert reason(core.blocked_by) in ("reserve", "idle")
    at = core.next_event(1.1)
    assert at is not None
    assert at > 1.1


def test_a_request_that_comes_while_a_prompt_is_read_does_not_wait_for_the_rest() -> None:
    core = core_with(8, **MEASURED)
    core.engine_reports(report(8, **MEASURED), 0.0)
    row = idle(prompt_tokens=5000)
    fill(core, row, "row", at=1.0)
    assert core.reclaim.cut_idle(1.0) == []
    fill(core, interactive(prompt_tokens=10), "i", at=1.1)
    assert core.reclaim.cut_idle(1.1) == ["row"]
    row.reclaimed = MAX_CUTS
    core = core_with(8, **MEASURED)
    fill(core, row, "row", at=1.0)
    fill(core, interactive(prompt_tokens=10), "i", at=1.1)
    assert core.reclaim.cut_idle(1.1) == [], "not for ever"


def test_a_row_whose_last_part_is_read_stays_for_the_step_would_not_end_earlier() -> None:
    core = core_with(8, **MEASURED)
    core.engine_reports(report(8, **MEASURED), 0.0)
    fill(core, idle(prompt_tokens=400), "row", at=1.0)
    fill(core, interactive(prompt_tokens=10), "i", at=1.001)
    assert core.reclaim.cut_idle(1.0 + STEP.ms(4) / 1000) == []
    assert core.reclaim.cut_idle(1.001) == ["row"], "it waits for the step before to end"


def test_a_prompt_costs_the_time_that_the_steps_of_others_take_longer_by() -> None:
    core = core_with(8, **MEASURED)
    fill(core, interactive(prompt_tokens=1000, max_tokens=50), "i")
    room, row = core.constraints.idle, idle(prompt_tokens=5000)
    read_s = 0.5 + 10 * STEP.ms(2) / 1000

    def cost(step_tokens: int) -> float:
        core.engine_reports(report(8, **MEASURED | {"step_tokens": step_tokens}), 1.0)
        return room._delay_s(row) / read_s

    # Ten parts of 0.05 s, of which one is met by half.
    assert cost(500) == pytest.approx(0.5 * 0.05, rel=0.1)
    row.reclaimed = MAX_CUTS
    assert cost(500) == pytest.approx(0.5 * 0.05 + 0.25, rel=0.1), "half of all is waited for"
    # Read beside it: one part in each of the two steps of 1 000 tokens.
    assert cost(1000) == pytest.approx((0.5 + 2 - 0.2) * 0.05, rel=0.1)


def test_what_is_unread_of_a_prompt_that_is_cut_costs_nothing() -> None:
    def sends_again_at(until: float | None) -> float:
        """When the next row is sent. `until`: the first is cut then."""
        core = core_with(8, **MEASURED)
        fill(core, interactive(prompt_tokens=500, max_tokens=50), "i")
        core.engine_reports(report(8, **MEASURED), 0.1)
        fill(core, idle(prompt_tokens=50_000), "row", at=10.0)
        if until is not None:
            fill(core, interactive(prompt_tokens=10), "j", at=until)
            assert core.reclaim.cut_idle(until) == ["row"]
        room = core.constraints.idle
        return room._delay_budget.ready_at(room._delay_allowance(), 10.6)

    assert sends_again_at(10.5) < sends_again_at(None) / 2

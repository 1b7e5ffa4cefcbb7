"""Requests that arrive while the engine is away: those wait that may wait until it is back."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.draining import Drain, OrderedBy
from orch_sidecar.admission.types import Decision, Lease, Queued
from orch_sidecar.api.refusal import Reason, Refusal
from tests.orch_sidecar.admission.examples import (
    bulk,
    class_rules,
    core_of,
    fill,
    granted,
    interactive,
    queue,
    reason_of,
    refused,
    report,
    rules,
)

STARTING = Refusal(Reason.ENGINE_STARTING, "it loads")
DOWN = Refusal(Reason.ENGINE_DOWN, "it is down")
OF_RULES = rules(class_rules(ttft_p95_ms=10_000.0), class_rules(max_wait_s=600.0))


def away(lasted_s: float, at: float = 100.0) -> AdmissionController:
    """An engine that starts, and took `lasted_s` for that the last time."""
    core = core_of(2, OF_RULES)
    core.engine_unavailable(STARTING, 0.0, expected=True)
    core.engine_reports(report(2, "e2"), lasted_s)
    core.engine_unavailable(STARTING, at, expected=True)
    return core


def test_those_that_may_wait_are_queued_and_served_in_order_when_it_is_back() -> None:
    core = away(5.0)
    assert queue(core, interactive(), "a", "b", at=101.0) == [Queued(0, 4000), Queued(1, 4000)]
    assert core.dispatch(102.0) == []
    assert core.engine_reports(report(2, "e3"), 103.0) == [
        Decision("a", Lease("a", 1, "e3")),
        Decision("b", Lease("b", 1, "e3")),
    ]


def test_those_that_may_not_wait_that_long_hear_when_to_come_again() -> None:
    core = away(90.0)
    outcome = core.arrive("a", interactive(), 110.0)
    assert isinstance(outcome, Refusal)
    assert (outcome.reason, outcome.retry_after_ms) == (Reason.ENGINE_STARTING, 60_000)
    queue(core, bulk(), "b", at=110.0)
    outcome = core.arrive("c", bulk(max_wait_ms=20_000.0), 110.0)
    assert reason_of(outcome) is Reason.ENGINE_STARTING
    outcome = core.arrive("d", bulk(may_queue=False), 110.0)
    assert reason_of(outcome) is Reason.ENGINE_STARTING
    outcome = core.arrive("e", interactive(), 188.0)
    assert isinstance(outcome, Queued), "in two seconds it is back"


def test_queue_is_bounded_while_it_is_away() -> None:
    core = away(1.0)
    queue(core, interactive(), *map(str, range(16)), at=100.0)
    assert reason_of(core.arrive("more", interactive(), 100.0)) is Reason.ENGINE_STARTING


def test_nobody_waits_for_a_crashed_engine_nor_where_another_may_serve() -> None:
    core = away(1.0, at=5.0)
    core.engine_reports(report(2, "e3"), 6.0)
    core.engine_unavailable(DOWN, 10.0)
    outcome = core.arrive("a", bulk(), 14.0)
    assert isinstance(outcome, Refusal)
    assert (outcome.reason, outcome.retry_after_ms) == (Reason.ENGINE_DOWN, 4000)
    core = away(1.0)
    core.keeps_queue = False
    assert reason_of(core.arrive("a", bulk(), 100.0)) is Reason.ENGINE_STARTING


@pytest.mark.parametrize("ordered_by", OrderedBy)
def test_engine_whose_stop_was_ordered_is_replaced(ordered_by: OrderedBy) -> None:
    core = core_of(2, OF_RULES)
    core.drain(Drain(ordered_by, 0.0))
    assert reason_of(core.arrive("a", bulk(), 1.0)) is Reason.DRAINING, "it completes what it has"
    core.engine_unavailable(DOWN, 2.0)
    outcome = core.arrive("b", bulk(), 3.0)
    if ordered_by is not OrderedBy.ENGINE_STOP:
        assert reason_of(outcome) is Reason.DRAINING
        return
    assert isinstance(outcome, Queued)
    assert granted(core.engine_reports(report(2, "e2"), 9.0)) == ["b"]


def test_request_whose_time_ends_hears_of_the_engine() -> None:
    core = away(5.0)
    queue(core, interactive(), "a", at=100.0)
    assert refused(core.dispatch(110.0)) == {"a": Reason.ENGINE_STARTING}


def test_request_that_is_too_large_for_the_engine_is_refused_when_that_is_known() -> None:
    core = AdmissionController(OF_RULES)
    queue(core, bulk(8), "large")
    queue(core, bulk(1), "small")
    decisions = core.engine_reports(report(2), 1.0)
    assert refused(decisions) == {"large": Reason.COST_EXCEEDS_SLOTS}
    assert granted(decisions) == ["small"]


def test_request_that_was_too_large_for_the_engine_before_does_not_wait_for_it() -> None:
    assert reason_of(away(1.0).arrive("large", bulk(3), 100.0)) is Reason.COST_EXCEEDS_SLOTS


def test_requests_that_run_are_no_reason_to_wait_elsewhere() -> None:
    core = core_of(1, OF_RULES)
    fill(core, interactive(), "a")
    core.engine_unavailable(Refusal(Reason.ENGINE_STALLED, "no progress"), 1.0, expected=True)
    queue(core, interactive(), "b", at=1.0)
    core.engine_reports(report(1), 2.0)
    assert granted(core.release("a", 3.0)) == ["b"]

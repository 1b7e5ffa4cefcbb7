"""The admission core by example: a tier below refused what was admitted."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.ask import Ask, Queued
from orch_sidecar.admission.core import Admission
from orch_sidecar.admission.scarce import Hold
from orch_sidecar.reasons import Reason
from tests.orch_sidecar.admission.examples import (
    STALE,
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


def refused_below(
    core: Admission, name: str, ask: Ask, pause_s: float, now: float, since: float = 0.0
) -> None:
    """The tier below refused this lease: it waits again under another id."""
    assert core.put_back(f"{name}'", ask, since, pause_s, now) == Queued(0, None)
    assert core.release(name, now) == []


def test_who_is_put_back_goes_first_and_nobody_goes_for_a_while() -> None:
    core = core_of(2)
    fill(core, interactive(), "a")
    fill(core, bulk(), "x")
    queue(core, interactive(), "b")
    refused_below(core, "a", interactive(), 0.5, 1.0)
    assert core.hold is Hold.PAUSE
    assert core.next_event(1.0) == 1.5
    queue(core, bulk(), "c", at=1.2)
    assert reason_of(core.arrive("d", bulk(may_queue=False), 1.2)) is Reason.DO_NOT_QUEUE
    assert core.release("x", 1.3) == []
    assert core.tick(1.49) == []
    assert granted(core.tick(1.5)) == ["a'", "b"]


@pytest.mark.parametrize(("asked_s", "pause_s"), [(0.0, 0.02), (0.3, 0.3), (3600.0, 1.0)])
def test_pause_has_bounds(asked_s: float, pause_s: float) -> None:
    core = core_of(1)
    fill(core, interactive(), "a")
    refused_below(core, "a", interactive(), asked_s, 1.0)
    assert core.next_event(1.0) == 1.0 + pause_s
    assert granted(core.tick(1.0 + pause_s)) == ["a'"]


def test_a_shorter_pause_does_not_end_a_longer_one() -> None:
    core = core_of(2)
    fill(core, interactive(), "a", "b")
    refused_below(core, "a", interactive(), 1.0, 1.0)
    refused_below(core, "b", interactive(), 0.1, 1.0)
    assert core.tick(1.5) == []
    assert granted(core.tick(2.0)) == ["b'", "a'"]


def test_who_is_put_back_keeps_its_time_limits() -> None:
    core = core_of(1)
    fill(core, interactive(), "a")
    ask = interactive(max_wait_ms=2000.0)
    refused_below(core, "a", ask, 1.0, 1.5, since=0.0)
    assert core.next_event(1.5) == 2.0
    assert refused(core.tick(2.0)) == {"a'": Reason.QUEUE_TIMEOUT}
    outcome = core.put_back("b", ask, 0.0, 1.0, 2.5)
    assert reason_of(outcome) is Reason.QUEUE_TIMEOUT


def test_who_is_put_back_finds_room_in_a_full_queue() -> None:
    core = core_of(1, rules(class_rules(queue_capacity=1)))
    fill(core, interactive(), "a")
    queue(core, interactive(), "b")
    refused_below(core, "a", interactive(), 0.1, 1.0)
    assert core.queue_depth == 2


def test_who_is_put_back_and_has_become_too_large_is_refused() -> None:
    core = core_of(4)
    fill(core, interactive(4), "a")
    core.engine_reports(report(2, "e2"), 1.0)
    assert reason_of(core.put_back("b", interactive(4), 0.0, 0.1, 1.1)) is (
        Reason.COST_EXCEEDS_SLOTS
    )


def test_nobody_is_put_back_while_draining() -> None:
    core = core_of(1)
    fill(core, interactive(), "a")
    core.drain()
    assert reason_of(core.put_back("b", interactive(), 0.0, 0.1, 1.0)) is Reason.DRAINING


def test_a_delayed_bulk_request_behind_one_that_was_put_back_is_not_delayed_the_more() -> None:
    core = core_of(2)
    fill(core, interactive(), "i")
    fill(core, bulk(), "a")
    core.engine_reports(report(2, foreign=1), 0.0)
    queue(core, bulk(), "b")
    refused_below(core, "a", bulk(), 0.02, 25.0, since=0.0)
    queue(core, interactive(), "i2", at=25.0)
    core.tick(25.1)
    assert granted(core.engine_reports(report(2), 26.0)) == ["a'"]
    assert granted(core.release("i", 27.0)) == ["b"]


def test_a_pause_is_delay_as_far_as_interactive_requests_take_slots() -> None:
    core = core_of(2, rules(aging_s=0.4))
    fill(core, interactive(), "i")
    fill(core, bulk(), "a")
    core.release("a", 1.0)
    core.put_back("a'", bulk(), 0.0, 1.0, 1.0)
    queue(core, interactive(2), "i2", at=1.5)
    assert granted(core.tick(2.0)) == ["a'"], "half a second of delay"


def test_who_is_put_back_waits_while_the_engine_is_unavailable() -> None:
    core = core_of(1)
    fill(core, interactive(), "a")
    core.engine_unavailable(STALE)
    refused_below(core, "a", interactive(), 0.1, 1.0)
    assert core.tick(5.0) == []
    assert granted(core.engine_reports(report(1), 6.0)) == ["a'"]

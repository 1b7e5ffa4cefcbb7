"""The admission controller by example: a tier below refused what was admitted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, Queued
from orch_sidecar.api.refusal import Reason
from tests.orch_sidecar.admission.examples import (
    STEP_TIME,
    bulk,
    class_rules,
    core_of,
    ended,
    fill,
    granted,
    interactive,
    queue,
    reason,
    reason_of,
    refused,
    report,
    rules,
)
from vllm_plugin.contracts.profile import FullQueue


def refused_below(
    core: AdmissionController,
    name: str,
    request: AdmissionRequest,
    pause_s: float,
    now: float,
    since: float = 0.0,
) -> None:
    """The tier below refused this lease: it waits again under another id."""
    core.pause("none", pause_s, now)
    assert core.release(name, now) == [], "no other is dispatched after it"
    assert core.requeue(f"{name}'", request, since, now) == Queued(0, None)


def test_requeued_request_goes_first_after_a_pause() -> None:
    core = core_of(2)
    fill(core, interactive(), "a")
    fill(core, bulk(), "x")
    queue(core, interactive(), "b", at=0.5)
    refused_below(core, "a", interactive(), 0.5, 1.0)
    assert reason(core.blocked_by) == "pause"
    assert core.next_event(1.0) == 1.5
    queue(core, bulk(), "c", at=1.2)
    assert reason_of(core.arrive("d", bulk(may_queue=False), 1.2)) is Reason.DO_NOT_QUEUE
    assert core.release("x", 1.3) == []
    assert core.dispatch(1.49) == []
    assert granted(core.dispatch(1.5)) == ["a'", "b"]


def test_requeued_request_that_cannot_meet_its_slo_is_refused() -> None:
    """2 s, less a step of 11 ms."""
    core = core_of(1, rules(class_rules(ttft_p95_ms=2000.0)), step_time=STEP_TIME)
    fill(core, interactive(), "a", at=1.0)
    refused_below(core, "a", interactive(), 0.02, 2.5, since=1.0)
    assert core.next_event(2.9) == pytest.approx(2.901), "the pause is over"
    core.engine_reports(report(1, foreign=1, step_time=STEP_TIME), 2.9)
    assert core.next_event(2.9) == pytest.approx(2.989)
    assert refused(core.dispatch(2.99)) == {"a'": Reason.SLO_MISS}
    outcome = core.requeue("a''", interactive(), 1.0, 3.0)
    assert reason_of(outcome) is Reason.SLO_MISS


def test_starts_are_predicted_for_after_the_pause() -> None:
    core = core_of(2, step_time=STEP_TIME)
    request = interactive(max_tokens=100)
    fill(core, request, "a")
    refused_below(core, "a", request, 0.5, 1.0)
    foreseen = core.forecast(request, 1.1)
    assert foreseen is not None
    assert foreseen.start_ms == pytest.approx(400)
    assert foreseen.first_token_ms == pytest.approx(400 + 11)
    assert queue(core, request, "b", at=1.1) == [Queued(1, 400)]
    outcome = core.arrive("c", replace(request, max_wait_ms=300.0), 1.1)
    assert reason_of(outcome) is Reason.QUEUE_TIMEOUT


def test_requeued_request_adds_no_delay_to_the_bulk_request_behind_it() -> None:
    core = core_of(2)
    fill(core, interactive(), "i")
    fill(core, bulk(), "a")
    core.engine_reports(report(2, foreign=1), 0.0)
    queue(core, bulk(), "b")
    refused_below(core, "a", bulk(), 0.02, 25.0, since=0.0)
    queue(core, interactive(), "i2", at=25.0)
    core.dispatch(25.1)
    assert granted(core.engine_reports(report(2), 26.0)) == ["a'"]
    assert granted(core.release("i", 27.0)) == ["b"]


def test_a_pause_is_delay_as_far_as_interactive_requests_take_slots() -> None:
    core = core_of(2, rules(aging_s=0.4))
    fill(core, interactive(), "i")
    fill(core, bulk(), "a")
    refused_below(core, "a", bulk(), 1.0, 1.0)
    queue(core, interactive(2), "i2", at=1.5)
    assert granted(core.dispatch(2.0)) == ["a'"], "half a second of delay"


def test_rejected_request_is_no_measure_of_how_fast_slots_come_free() -> None:
    core = core_of(2)
    for number in range(3):
        fill(core, interactive(), f"a{number}", at=float(number))
        core.pause("none", 0.02, number + 0.1)
        core.release(f"a{number}", number + 0.1, served=False)
    assert core.forecaster.release_rates.all.per_second(3.0) is None
    for number in range(3, 6):
        fill(core, interactive(), f"a{number}", at=float(number))
        core.release(f"a{number}", number + 0.5)
    assert core.forecaster.release_rates.all.per_second(6.0) == pytest.approx(2 / 2.5)


def test_later_parts_take_no_place_in_a_full_queue() -> None:
    of_class = class_rules(queue_capacity=1)
    core = core_of(1, rules(of_class, of_class))
    fill(core, interactive(), "a")
    queue(core, interactive(is_later_part=True), "p2", "p3", "p4")
    queue(core, interactive(), "b")
    queue(core, interactive(is_later_part=True), "q2")
    assert reason_of(core.arrive("c", interactive(), 0.0)) is Reason.QUEUE_FULL
    order = ["a"]
    for _ in range(5):
        order += granted(core.release(order[-1], 1.0))
    assert order == ["a", "p2", "p3", "p4", "b", "q2"]


def test_later_part_outlives_the_longest_wait() -> None:
    core = core_of(1, rules(class_rules(max_wait_s=5.0)))
    fill(core, interactive(), "a")
    queue(core, interactive(is_later_part=True), "p2")
    queue(core, interactive(), "b")
    assert refused(core.dispatch(3_600.0)) == {"b": Reason.QUEUE_TIMEOUT}
    assert granted(core.release("a", 3_600.0)) == ["p2"]


@pytest.mark.parametrize("first", ["later", "whole"])
def test_part_that_runs_already_is_evicted_by_nobody(first: str) -> None:
    """A full queue is relieved by those that have a place in it."""
    of_class = class_rules(queue_capacity=1)
    core = core_of(1, rules(of_class, of_class, full_queue=FullQueue.DROP_LRU))
    fill(core, bulk(), "a")
    if first == "later":
        queue(core, bulk(is_later_part=True), "p2", "p3")
        queue(core, bulk(), "b")
    else:
        queue(core, bulk(), "b")
        queue(core, bulk(is_later_part=True), "p2", "p3")
    queue(core, bulk(), "c")
    assert refused(core.take_displaced()) == {"b": Reason.QUEUE_FULL_DROP_LRU}
    left = [*granted(core.release("a", 1.0))]
    for _ in range(2):
        left += granted(core.release(left[-1], 1.0))
    assert sorted(left) == ["c", "p2", "p3"]


def test_keys_are_compared_by_the_places_that_they_take() -> None:
    """Of two keys in a full queue that with more requests gives one up, however many parts the
    other's has."""
    of_class = class_rules(queue_capacity=3)
    core = core_of(1, rules(of_class, of_class))
    fill(core, interactive(), "a")
    queue(core, interactive(key="one"), "o1")
    queue(
        core, interactive(key="one", is_later_part=True), *(f"o{number}" for number in range(2, 9))
    )
    queue(core, interactive(key="two"), "t1", "t2")
    queue(core, interactive(key="three"), "x")
    assert [*refused(core.take_displaced())] == ["t2"]


def test_parts_count_for_their_key_like_requests() -> None:
    """A key with many parts gets no more than its share beside another."""
    core = core_of(2)
    fill(core, interactive(), "a", "b")
    queue(core, interactive(key="one"), "o1")
    queue(core, interactive(key="one", is_later_part=True), "o2", "o3", "o4")
    queue(core, interactive(key="two"), "t1", "t2")
    order: list[str] = []
    for name in ("a", "b", *("o1", "t1", "o2", "t2")):
        order += granted(ended(core, [name], 1.0))
    assert sorted(order[:4]) == ["o1", "o2", "t1", "t2"]

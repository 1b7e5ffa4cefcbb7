"""The admission controller by example: events of the engine and of the operator.

A tier below refused what was admitted.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from orch_sidecar.admission.availability import Drain, OrderedBy
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, Decision, Lease, Queued
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.pools.status import status_of
from tests.orch_sidecar.admission.examples import (
    STEP_TIME,
    bulk,
    class_rules,
    core_of,
    ended,
    fill,
    granted,
    interactive,
    kv_of,
    queue,
    reason,
    reason_of,
    refused,
    report,
    rules,
)
from vllm_plugin.contracts.profile import FullQueue

# The engine


def test_new_epoch_may_begin_with_leases_that_reached_it_under_the_old_one() -> None:
    core = core_of(2)
    fill(core, interactive(), "a")
    queue(core, bulk(2), "b")
    assert core.engine_reports(report(2, "e2", leases=(("a", 1),)), 1.0) == []
    assert (core.ledger.leased, core.ledger.closing()) == (1, ["a"])
    assert granted(core.release("a", 2.0)) == ["b"]


# The operator


def test_drain_for_the_stop_of_an_engine_ends_with_the_report_of_the_next_one() -> None:
    core = core_of(1)
    core.drain(Drain(OrderedBy.ENGINE_STOP, 0.0))
    core.engine_reports(report(1), 1.0)  # of the one that is being stopped
    assert reason_of(core.arrive("a", interactive(), 1.0)) is Reason.DRAINING
    core.engine_reports(report(1, "e2"), 2.0)
    assert core.draining is None
    fill(core, interactive(), "b")


def test_drain_for_the_stop_of_an_engine_that_never_reported_ends_with_the_first_report() -> None:
    core = AdmissionController(rules())
    core.drain(Drain(OrderedBy.ENGINE_STOP, 0.0))
    core.engine_reports(report(1), 1.0)
    assert core.draining is None


@pytest.mark.parametrize("by", [OrderedBy.OPERATOR, OrderedBy.SHUTDOWN])
def test_drain_that_was_ordered_for_the_pool_outlives_its_engine(by: OrderedBy) -> None:
    core = core_of(1)
    core.drain(Drain(by, 0.0))
    core.engine_reports(report(1, "e2"), 1.0)
    assert reason_of(core.arrive("a", interactive(), 1.0)) is Reason.DRAINING


def test_queued_request_that_can_no_longer_fit_is_refused_when_slots_shrink() -> None:
    core = core_of(4)
    fill(core, interactive(4), "a")
    queue(core, interactive(4), "large")
    queue(core, interactive(1), "small")
    decisions = core.engine_reports(report(2, "e2"), 1.0)
    assert refused(decisions) == {"large": Reason.COST_EXCEEDS_SLOTS}
    assert granted(decisions) == ["small"]


def test_grants_are_counted_by_class() -> None:
    core = core_of(1)
    fill(core, interactive(), "a")
    queue(core, bulk(), "b")
    core.arrive("c", bulk(9), 0.0)
    core.release("a", 1.0)
    core.arrive("d", interactive(may_queue=False), 2.0)
    status = status_of(core, 0.0)
    assert (status.interactive.granted, status.bulk.granted, status.granted) == (1, 1, 2)


def test_jitter_is_by_chance_unless_it_is_given() -> None:
    def retry_after_ms(jitter: random.Random | None) -> int | None:
        core = AdmissionController(rules(), jitter)
        core.engine_reports(report(1), 0.0)
        fill(core, interactive(), "a")
        outcome = core.arrive("b", interactive(may_queue=False), 0.0)
        assert isinstance(outcome, Refusal)
        return outcome.retry_after_ms

    assert retry_after_ms(random.Random(7)) == retry_after_ms(random.Random(7))
    assert len({retry_after_ms(None) for _ in range(20)}) > 1


def test_clients_refused_together_are_asked_back_one_after_the_other_in_a_turn_of_all_slots() -> (
    None
):
    """A slot comes free each second."""
    core = core_of(4)
    fill(core, interactive(), "a", "b", "c", "d")
    for number in range(3):
        core.release("abc"[number], 1.0 + number)
        fill(core, interactive(), f"more {number}", at=1.0 + number)
    demand = core.constraints.reserve.interactive
    for number in range(10):
        request = interactive(may_queue=False, identity=1 + number)
        outcome = core.arrive(f"r{number}", request, 3.0)
        assert isinstance(outcome, Refusal)
        assert outcome.retry_after_ms is not None
        at_s = min(1 + number, 5)
        assert 1000 * at_s <= outcome.retry_after_ms <= 1250 * at_s
        demand.refused(request, 3.0 + outcome.retry_after_ms / 1000, 3.0)


def test_who_may_not_queue_is_not_asked_back_before_a_slot_is_expected_to_be_free() -> None:
    core = core_of(1, step_time=STEP_TIME)
    fill(core, interactive(max_tokens=1000), "a")
    outcome = core.arrive("b", interactive(may_queue=False), 0.0)
    assert isinstance(outcome, Refusal)
    assert outcome.predicted_start_ms == 11_000
    assert outcome.retry_after_ms is not None
    assert 11_000 <= outcome.retry_after_ms <= 1.25 * 11_000


def test_short_prompts_behind_a_long_one_in_the_engine_block_nothing() -> None:
    core = core_of(64, kv=kv_of(1000))
    fill(core, bulk(prompt_tokens=650, max_tokens=10), "long")
    fill(core, bulk(prompt_tokens=10, max_tokens=10), *(f"short {n}" for n in range(9)))
    reading = report(64, kv=kv_of(1000), kv_usage=0.6, scheduled=10, waiting=9, prefilling=10)
    for at in (1.0, 2.0, 3.0):
        core.engine_reports(reading, at)
    fill(core, bulk(prompt_tokens=10, max_tokens=10), "next", at=3.0)


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


def test_request_that_was_too_large_for_the_engine_before_does_not_wait_for_it() -> None:
    assert reason_of(away(1.0).arrive("large", bulk(3), 100.0)) is Reason.COST_EXCEEDS_SLOTS


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
    queue(core, interactive(key=b"one"), "o1")
    queue(
        core, interactive(key=b"one", is_later_part=True), *(f"o{number}" for number in range(2, 9))
    )
    queue(core, interactive(key=b"two"), "t1", "t2")
    queue(core, interactive(key=b"three"), "x")
    assert [*refused(core.take_displaced())] == ["t2"]


def test_parts_count_for_their_key_like_requests() -> None:
    """A key with many parts gets no more than its share beside another."""
    core = core_of(2)
    fill(core, interactive(), "a", "b")
    queue(core, interactive(key=b"one"), "o1")
    queue(core, interactive(key=b"one", is_later_part=True), "o2", "o3", "o4")
    queue(core, interactive(key=b"two"), "t1", "t2")
    order: list[str] = []
    for name in ("a", "b", *("o1", "t1", "o2", "t2")):
        order += granted(ended(core, [name], 1.0))
    assert sorted(order[:4]) == ["o1", "o2", "t1", "t2"]

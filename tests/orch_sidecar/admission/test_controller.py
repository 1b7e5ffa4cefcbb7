"""The admission controller by example: which requests are dispatched, in which order. Times are
literal seconds.

Whose drain of a pool applies when several ordered one.

The status of an admission: the free slots are those that the next request would get.

Full queues and time limits.
"""

from __future__ import annotations

import random
from itertools import permutations
from typing import ClassVar

import pytest

from orch_sidecar.admission import refusals
from orch_sidecar.admission.availability import Drain, OrderedBy, after_restart, stronger
from orch_sidecar.admission.constraints.constraint import Constraint, Occupancy
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, Decision, Lease, Queued
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.pools.status import status_of
from tests.orch_sidecar.admission.examples import (
    BULK,
    INTERACTIVE,
    STEP_TIME,
    bulk,
    class_rules,
    core_of,
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
from vllm_plugin.contracts.profile import AdmissionRules, BatchBounds, FullQueue


def test_cost_above_the_slots_is_refused_with_both_numbers() -> None:
    outcome = core_of(4).arrive("a", interactive(5), 0.0)
    assert isinstance(outcome, Refusal)
    assert outcome.reason is Reason.COST_EXCEEDS_SLOTS
    assert "5 sequences" in outcome.message
    assert "4 slots" in outcome.message


def test_bulk_goes_when_interactive_traffic_has_delayed_it_by_the_bound() -> None:
    """All the slot is taken from it, so the delay is the wait."""
    core = core_of(1)
    fill(core, interactive(), "i0")
    queue(core, bulk(), "b")
    for number in range(9):
        queue(core, interactive(), f"i{number + 1}", at=number + 0.5)
        assert granted(core.release(f"i{number}", number + 1.0)) == [f"i{number + 1}"]
    queue(core, interactive(), "late", at=9.5)
    assert core.next_event(9.5) == 10.0
    assert core.dispatch(10.0) == []
    assert granted(core.release("i9", 10.1)) == ["b"]


@pytest.mark.parametrize("cost", [1, 3, 8])
@pytest.mark.parametrize("of_rules", [rules(bulk_share=0.1, aging_s=None), rules(aging_s=30.0)])
def test_no_bulk_request_is_passed_by_for_ever(cost: int, of_rules: AdmissionRules) -> None:
    """Though there are always interactive requests, more than there are slots for."""
    core = core_of(8, of_rules)
    running: list[str] = []
    went: float | None = None
    for number in range(2000):
        now = number / 20
        outcome = core.arrive(f"i{number}", interactive(max_wait_ms=100.0), now)
        running += [f"i{number}"] if isinstance(outcome, Lease) else []
        if number == 200:
            queue(core, bulk(cost), "b", at=now)
        names = granted(core.take_displaced())
        if len(running) == 8 or (running and number % 2):
            names += granted(core.release(running.pop(0), now, 10))
        running += [name for name in names if name != "b"]
        if "b" in names:
            went = now
            break
    assert went is not None
    assert went - 10 <= 60


def test_a_later_request_of_another_key_does_not_extend_the_bound_of_the_delay() -> None:
    """It goes first, for its key has had less; but before interactive requests."""
    core = core_of(1, rules(aging_s=10.0))
    fill(core, bulk(key=b"a"), "a0")
    core.release("a0", 0.1, 1000)
    fill(core, interactive(), "i0", at=0.2)
    queue(core, bulk(key=b"a"), "a1", at=0.3)
    queue(core, interactive(), "i1", at=0.4)
    queue(core, bulk(key=b"b"), "b1", at=9.0)
    assert core.next_event(9.0) == pytest.approx(10.3)
    assert granted(core.release("i0", 10.4)) == ["b1"]
    assert granted(core.release("b1", 10.5, 10)) == ["a1"]
    assert granted(core.release("a1", 10.6, 10)) == ["i1"]


def test_a_request_whose_wait_has_expired_keeps_none_that_arrives_then_from_its_slot() -> None:
    """The engine needs longer than the SLO for its prompt: it would be refused if it had to wait,
    and is served where a slot is free."""
    of_rules = rules(class_rules(ttft_p95_ms=300.0))
    core = core_of(3, of_rules, step_time=STEP_TIME, prefill_tokens_per_s=100.0)
    fill(core, bulk(2), "b")
    queue(core, interactive(2), "expires")
    assert isinstance(core.arrive("i", interactive(prompt_tokens=50), 0.3), Lease)
    assert refused(core.take_displaced()) == {"expires": Reason.SLO_MISS}


def busy(core: AdmissionController, until: float) -> None:
    """Interactive requests of a second come twice in it, from 0 s on."""
    for number in range(int(2 * until)):
        now = number / 2
        fill(core, interactive(max_tokens=100), f"busy{number}", at=now)
        if number >= 2:
            core.release(f"busy{number - 2}", now, 100)
    for number in range(int(2 * until) - 2, int(2 * until)):
        core.release(f"busy{number}", until, 100)


def test_reserve_comes_back_to_bulk_when_interactive_requests_stay_away() -> None:
    core = core_of(4)
    busy(core, until=30.0)
    fill(core, bulk(), "a", "b", "b2", at=30.0)
    queue(core, bulk(), "c", at=30.0)
    assert reason(core.blocked_by) == "reserve"
    now, decisions = 30.0, list[Decision]()
    while not decisions:
        at = core.next_event(now)
        assert at is not None
        assert at > now
        decisions = core.dispatch(now := at)
    assert granted(decisions) == ["c"]
    assert 31.0 <= now <= 60.0


def test_preemption_blocks_requests_until_the_cache_has_recovered() -> None:
    core = core_of(4, kv=kv_of(1000))
    fill(core, bulk(prompt_tokens=700, max_tokens=100), "a")
    core.engine_reports(report(4, kv=kv_of(1000), kv_usage=0.95, preemptions_total=1), 1.0)
    queue(core, bulk(prompt_tokens=100, max_tokens=50), "b", at=1.0)
    assert reason(core.blocked_by) == "kv"
    now, decisions = 1.0, list[Decision]()
    while not decisions:
        at = core.next_event(now)
        assert at is not None
        assert now + 0.2 <= at, "it looks now and then"
        decisions = core.dispatch(now := at)
    assert granted(decisions) == ["b"]
    assert now == pytest.approx(25.0, abs=0.3), "950 of 1000 tokens, 750 at first, 30 s to recover"


# Reloaded rules


def test_reloaded_rules_apply_to_new_requests_and_end_none() -> None:
    core = core_of(2)
    fill(core, interactive(2), "a")
    queue(core, interactive(), "b", "c")
    small = class_rules(queue_capacity=1, max_wait_s=1.0, batch=BatchBounds(least=1, most=1))
    assert core.replace_rules(rules(small, small), 1.0) == []
    assert (core.ledger.leased, core.queues.depth) == (2, 2)
    limits = core.constraints.batch.limits
    assert limits.batch(INTERACTIVE) == limits.batch(BULK) == 1
    assert reason_of(core.arrive("d", interactive(), 1.0)) is Reason.QUEUE_FULL
    assert core.dispatch(59.9) == []
    assert granted(core.release("a", 59.9)) == ["b"]
    assert refused(core.dispatch(60.0)) == {"c": Reason.QUEUE_TIMEOUT}


class UnlessSplit(Constraint):
    """Blocks everything while the rules forbid to divide requests."""

    reason: ClassVar[str] = "unsplit"
    absolute: ClassVar[bool] = True

    def __init__(self, of_rules: AdmissionRules) -> None:
        self.rules = of_rules

    def reloaded(self, rules: AdmissionRules) -> None:
        self.rules = rules

    def blocks(self, request: AdmissionRequest, occupancy: Occupancy, now: float) -> bool:
        return not self.rules.split


def test_reloaded_rules_reach_each_constraint() -> None:
    before, after = rules(bulk_share=0.1), rules(bulk_share=0.5, split=True)
    core = AdmissionController(before, random.Random(1), (UnlessSplit(before),))
    core.engine_reports(report(4), 0.0)
    queue(core, interactive(), "a")
    assert granted(core.replace_rules(after, 1.0)) == ["a"]
    reading = [each for each in core.constraints.all if hasattr(each, "rules")]
    assert [each.rules is after for each in reading] == [True] * 3, "reserve, prefill, and this one"


def test_no_slot_is_free_for_a_request_that_would_wait_behind_a_due_one() -> None:
    core = core_of(4, rules(aging_s=1.0))
    fill(core, interactive(), "i0", "i1")
    assert isinstance(core.arrive("large", bulk(cost=4), 0.0), Queued)
    assert status_of(core, 0.1).interactive.free == 2
    assert status_of(core, 5.0).interactive.free == 0
    assert isinstance(core.arrive("i2", interactive(), 5.0), Queued)


ENGINE_STOP = Drain(OrderedBy.ENGINE_STOP, 1.0)
OPERATOR = Drain(OrderedBy.OPERATOR, 2.0)
SHUTDOWN = Drain(OrderedBy.SHUTDOWN, 3.0)


@pytest.mark.parametrize("orders", list(permutations([ENGINE_STOP, OPERATOR, SHUTDOWN])))
def test_strongest_order_stands_whenever_it_came(orders: list[Drain]) -> None:
    drain = None
    for order in orders:
        drain = stronger(drain, order)
    assert drain is SHUTDOWN
    assert stronger(stronger(None, OPERATOR), ENGINE_STOP) is OPERATOR


def test_order_that_is_repeated_keeps_the_time_of_the_first() -> None:
    assert stronger(OPERATOR, Drain(OrderedBy.OPERATOR, 9.0)) is OPERATOR


def test_only_the_stop_of_an_engine_ends_with_it() -> None:
    drains = (None, ENGINE_STOP, OPERATOR, SHUTDOWN)
    assert [after_restart(drain) for drain in drains] == [None, None, OPERATOR, SHUTDOWN]


def free(core: AdmissionController, now: float = 0.0) -> tuple[int, int]:
    """Of interactive and of bulk requests."""
    status = status_of(core, now)
    return status.of(INTERACTIVE).free, status.of(BULK).free


def starts(core: AdmissionController, request: AdmissionRequest, now: float = 0.0) -> bool:
    """Whether it gets a slot at once."""
    return isinstance(core.arrive("next", request, now), Lease)


def test_all_slots_are_free_while_nothing_waits() -> None:
    core = core_of(4)
    fill(core, interactive(), "i")
    assert free(core) == (3, 3)


@pytest.mark.parametrize("next_one", [interactive(max_tokens=1), bulk(max_tokens=1)])
def test_none_is_free_while_the_kv_cache_has_no_room(next_one: AdmissionRequest) -> None:
    core = core_of(4, kv=kv_of(100))
    fill(core, interactive(prompt_tokens=50, max_tokens=50), "i")
    assert free(core) == (0, 0)
    assert not starts(core, next_one)


def test_interactive_requests_that_wait_only_for_their_batch_leave_slots_to_bulk() -> None:
    core = core_of(4, rules(class_rules(batch=BatchBounds(least=1, most=1))))
    fill(core, interactive(), "i")
    queue(core, interactive(), "waits")
    assert reason(core.blocked_by) == "batch"
    assert free(core) == (0, 3)
    assert starts(core, bulk())


def of_capacity(capacity: int, full_queue: FullQueue = FullQueue.REJECT) -> AdmissionRules:
    """The same for both classes."""
    of_class = class_rules(queue_capacity=capacity)
    return rules(of_class, of_class, full_queue=full_queue)


# Full queues


def test_full_queue_refuses_with_a_time_to_come_back() -> None:
    core = core_of(1, of_capacity(1))
    fill(core, interactive(), "a")
    queue(core, interactive(), "b")
    outcome = core.arrive("c", interactive(), 0.0)
    assert isinstance(outcome, Refusal)
    assert outcome.reason is Reason.QUEUE_FULL
    assert outcome.queue_position == 1
    assert outcome.retry_after_ms is not None


def test_request_behind_the_evicted_one_is_dispatched_if_it_fits() -> None:
    core = core_of(4, of_capacity(2, FullQueue.DROP_LRU))
    fill(core, bulk(3), "a")
    queue(core, bulk(4), "large")
    queue(core, bulk(1), "small")
    assert core.arrive("last", bulk(1), 1.0) == Queued(2, None)
    decisions = core.take_displaced()
    assert refused(decisions) == {"large": Reason.QUEUE_FULL_DROP_LRU}
    assert granted(decisions) == ["small"]


# Retry-After


@pytest.mark.parametrize("seed", range(5))
def test_retry_after_counts_the_cost_of_all_queued_requests_and_is_spread(seed: int) -> None:
    core = core_of(4, of_capacity(2), prefill_tokens_per_s=100.0)
    core.enqueuer._jitter.seed(seed)
    fill(core, interactive(4), "a")
    core.release("a", 0.0)
    fill(core, interactive(4), "b")
    core.release("b", 4.0)  # 4 slots in 4 s: one per second
    fill(core, interactive(4, prompt_tokens=50), "c", at=4.0)  # read soon, but no slot is free
    queue(core, interactive(2), "d", at=4.0)
    queue(core, interactive(3), "e", at=4.0)
    outcome = core.arrive("f", interactive(1), 4.0)
    assert isinstance(outcome, Refusal)
    assert outcome.retry_after_ms is not None
    assert 6000 <= outcome.retry_after_ms <= 7500


# Time limits


@pytest.mark.parametrize(
    ("arriving", "at", "reason"),
    [
        (bulk(max_wait_ms=500.0), 0.5, Reason.QUEUE_TIMEOUT),
        (bulk(deadline_ms=500.0), 0.5, Reason.DEADLINE_MISS),
        (bulk(max_wait_ms=900.0, deadline_ms=500.0), 0.5, Reason.DEADLINE_MISS),
        (bulk(max_wait_ms=500.0, deadline_ms=900.0), 0.5, Reason.QUEUE_TIMEOUT),
        (bulk(max_wait_ms=1e9, deadline_ms=1e9), 60.0, Reason.QUEUE_TIMEOUT),
    ],
)
def test_the_shortest_of_its_time_limits_ends_the_wait(
    arriving: AdmissionRequest, at: float, reason: Reason
) -> None:
    core = core_of(1)
    fill(core, bulk(), "a")
    queue(core, arriving, "b")
    assert core.next_event(0.0) == at
    assert core.dispatch(at - 0.001) == []
    assert refused(core.dispatch(at)) == {"b": reason}


def test_refusal_states_a_time_limit_in_whole_milliseconds() -> None:
    """Of what the client allows, a fraction has passed before it is compared."""
    asked = interactive(max_wait_ms=199.808)
    refusal = refusals.too_long_a_wait(asked, class_rules(), start_ms=3000)
    assert refusal is not None
    assert "would start in 3000 ms, and X-Orch-Max-Wait-Ms allows 200 ms:" in refusal.message
    refusal = refusals.late(interactive(deadline_ms=1499.81), class_rules(), 2.0)
    assert refusal is not None
    assert "the request allows 1500 ms (" in refusal.message


def test_no_request_is_overtaken_while_the_timer_is_late() -> None:
    """What the one at the head waits for is not what the next does."""
    core = core_of(3, rules(class_rules(batch=BatchBounds(least=1, most=2))))
    fill(core, interactive(), "a")
    queue(core, interactive(2, max_wait_ms=1000.0), "late")
    queue(core, interactive(), "next")
    fill(core, bulk(), "b", at=0.5)
    queue(core, bulk(), "b2", at=1.1)
    decisions = core.take_displaced()
    assert refused(decisions) == {"late": Reason.QUEUE_TIMEOUT}
    assert granted(decisions) == ["next"]

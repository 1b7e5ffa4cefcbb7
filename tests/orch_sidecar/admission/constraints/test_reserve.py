"""The reserve of interactive requests, and which bulk requests go before them."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.types import AdmissionRequest, QueuedRequest
from orch_sidecar.api.refusal import Reason
from tests.orch_sidecar.admission.bench import Bench
from tests.orch_sidecar.admission.examples import (
    BULK,
    bulk,
    class_rules,
    interactive,
    reason,
    rules,
)


def asked_for(bench: Bench, slots: float, now: float = 0.0) -> None:
    """So many slots are asked for, and nothing else is measured."""
    demand = bench.constraints.reserve.interactive
    demand._slow_mean, demand.slots, demand._updated_at, demand.lent_s = slots, slots, now, 1e9


def reserved(bench: Bench, now: float = 0.0) -> int:
    return bench.constraints.reserve.reserved(now)


# The reserve


def test_reserve_is_the_demand_and_its_deviation() -> None:
    bench = Bench(16)
    asked_for(bench, 4.0)
    bench.grant(interactive(4))
    assert reserved(bench) == 6
    bench.grant(bulk(9))
    assert bench.blocked_by(bulk()) is None
    assert reason(bench.blocked_by(bulk(2))) == "reserve"
    assert bench.blocked_by(bulk(2), due=True) is None
    assert bench.blocked_by(interactive(2)) is None


def test_no_more_than_the_deviation_stays_free_beyond_what_is_used_and_waited_for() -> None:
    bench = Bench(16)
    asked_for(bench, 9.0)
    assert reserved(bench) == 3
    bench.wait(interactive(2))
    assert reserved(bench) == 5
    bench.grant(interactive(5))
    assert reserved(bench) == 10
    bench.grant(interactive(8))
    assert reserved(bench) == 12


@given(st.floats(0, 200), st.integers(0, 16), st.integers(0, 16), st.floats(-1, 1))
def test_idle_slots_are_bounded_by_the_deviation(
    demand: float, used: int, waiting: int, left: float
) -> None:
    bench = Bench(16)
    asked_for(bench, demand)
    bench.constraints.reserve._unused._saved = left * bench.constraints.reserve._unused._most
    if used:
        bench.grant(interactive(used))
    if waiting:
        bench.wait(interactive(waiting))
    assert reserved(bench) <= min(16, used + waiting + sqrt(demand) + 0.5)
    if left <= 0:
        assert reserved(bench) <= used + waiting + 0.5


def test_no_more_slots_are_reserved_than_keep_the_interactive_slo() -> None:
    bench = Bench(16)
    bench.limit(interactive=3, bulk=16, mixed=16)
    asked_for(bench, 9.0)
    bench.wait(interactive(8))
    assert reserved(bench) == 3


# What is free


def test_free_slots_are_what_the_next_requests_of_a_class_would_get() -> None:
    bench = Bench(16)
    bench.limit(interactive=6, bulk=12, mixed=10)
    constraints = bench.constraints
    assert constraints.free_slots(interactive().service_class, 0.0) == 6, (
        "and no more than its batch"
    )
    assert constraints.free_slots(BULK, 0.0) == 12
    assert bench.blocked_by(bulk(16)) is None, "though one that is alone gets all that it needs"
    asked_for(bench, 4.0)
    bench.grant(interactive(2))
    bench.grant(bulk(3))
    assert constraints.free_slots(interactive().service_class, 0.0) == 4
    assert constraints.free_slots(BULK, 0.0) == 5, "up to the mixed batch"
    bench.grant(bulk(5))
    assert constraints.free_slots(BULK, 0.0) == 0
    assert reason(bench.blocked_by(bulk())) == "batch"


def test_demand_is_a_multiple_of_the_batch_of_each_class() -> None:
    bench = Bench(8)
    bench.limit(interactive=2, bulk=8, mixed=8)
    bench.grant(interactive(2))
    bench.grant(bulk(4))
    constraints = bench.constraints
    assert constraints.reserve.demand_ratio(constraints.batch.limits, 0.0) == 1 + 0.5


# What it costs


def test_idle_slots_are_counted_only_while_bulk_waits_for_them() -> None:
    bench = Bench(16)
    asked_for(bench, 9.0)
    bench.grant(interactive(4))
    bench.grant(bulk(9))
    assert bench.constraints.reserve.kept_free(0.0) == 0
    bench.wait(bulk())
    assert bench.constraints.reserve.kept_free(0.0) == 3


# The bound of the delay


def share(bench: Bench, now: float = 0.0) -> float:
    """How fast the delay clock runs."""
    clock = bench.constraints.reserve.clock
    bench.constraints.reserve.update(now)
    return clock.value(now + 1.0) - clock.value(now)


@pytest.mark.parametrize(("taken", "expected"), [(0, 0.0), (1, 0.25), (3, 0.75), (4, 1.0)])
def test_delay_grows_at_the_share_of_slots_that_interactive_requests_take(
    taken: int, expected: float
) -> None:
    bench = Bench(4)
    if taken:
        bench.grant(interactive(taken))
    bench.wait(bulk())
    assert share(bench) == pytest.approx(expected)


def test_a_request_too_large_for_what_the_reserve_leaves_is_delayed_altogether() -> None:
    bench = Bench(8)
    bench.grant(interactive())
    bench.wait(bulk(8))
    bench.wait(bulk(), "behind")
    assert share(bench) == 1
    bench.queues.remove("waiting")
    assert share(bench) == pytest.approx(1 / 8), "what is next fits beside it"


def test_a_request_that_was_delayed_by_the_bound_is_due() -> None:
    bench = Bench(4, rules(aging_s=10.0, bulk_share=0.0))
    bench.grant(interactive(2))
    bench.wait(bulk())
    [waiting] = bench.queues.line(BULK)
    reserve = bench.constraints.reserve
    reserve.update(0.0)
    assert reserve.due_at(waiting, 0.0) == 20.0
    assert not reserve.is_due(waiting, 19.9)
    assert reserve.is_due(waiting, 20.0)


def test_without_a_bound_no_delay_makes_a_request_due() -> None:
    bench = Bench(4, rules(aging_s=None, bulk_share=0.0))
    bench.grant(interactive(4))
    bench.wait(bulk())
    [waiting] = bench.queues.line(BULK)
    bench.constraints.reserve.update(0.0)
    assert bench.constraints.reserve.due_at(waiting, 0.0) is None
    assert not bench.constraints.reserve.is_due(waiting, 1e6)


# Refusals


def test_refusals_while_bulk_has_more_than_its_share_are_counted() -> None:
    bench = Bench(10, rules(bulk_share=0.1))
    reserve = bench.constraints.reserve
    run = bench.grant(bulk(2))
    assert not reserve.refused(interactive(), Reason.SLO_MISS)
    assert not reserve.refused(bulk(), Reason.SLO_MISS)
    assert reserve.refused(interactive(deadline_ms=1.0), Reason.DEADLINE_MISS)
    assert reserve.refused(interactive(max_wait_ms=1.0), Reason.QUEUE_TIMEOUT)
    assert reserve.refused_beside_bulk == 1
    bench.release(run, 1.0)
    assert not reserve.refused(interactive(), Reason.QUEUE_TIMEOUT)
    assert reserve.refused_beside_bulk == 1


@pytest.mark.parametrize(
    ("request_", "reason", "own"),
    [
        (interactive(deadline_ms=900.0), Reason.DEADLINE_MISS, True),
        (interactive(deadline_ms=1000.0), Reason.DEADLINE_MISS, False),
        (interactive(deadline_ms=9e6, tpot_ms=1.0), Reason.DEADLINE_MISS, True),
        (interactive(max_wait_ms=59_000.0), Reason.QUEUE_TIMEOUT, True),
        (interactive(max_wait_ms=60_000.0), Reason.QUEUE_TIMEOUT, False),
        (interactive(may_queue=False), Reason.DO_NOT_QUEUE, True),
        (interactive(deadline_ms=1.0, max_wait_ms=1.0), Reason.SLO_MISS, False),
        (bulk(deadline_ms=9e6), Reason.DEADLINE_MISS, True),
    ],
)
def test_a_limit_that_is_no_stricter_than_the_class_is_not_the_requests_own(
    request_: AdmissionRequest, reason: Reason, own: bool
) -> None:
    """Who allows a minute for the first token asks for slots like those who allow the SLO."""
    bench = Bench(10, rules(class_rules(ttft_p95_ms=1000.0, max_wait_s=60.0)))
    assert bench.constraints.reserve.refused(request_, reason) is own


def test_a_request_that_its_own_limit_ended_is_no_demand() -> None:
    bench = Bench(10)
    reserve = bench.constraints.reserve
    own, ours = interactive(deadline_ms=1.0), interactive()
    for request, expiry_reason in ((own, Reason.DEADLINE_MISS), (ours, Reason.SLO_MISS)):
        request.work = 128.0
        reserve.interactive.arrivals.append((0.0, request))
        reserve.expired(QueuedRequest("w", request, 0.0, 0.0, expiry_reason, 0.0), 0.0)
    reserve.interactive.count_arrivals()
    assert reserve.interactive._keys[b""].work == 128.0

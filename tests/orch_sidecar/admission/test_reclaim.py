"""Bulk requests that give their slots to interactive ones: which, when, and how many."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.precedence import LOST_SHARE, MAX_RECLAIMS
from orch_sidecar.admission.types import AdmissionRequest, Lease, Queued
from orch_sidecar.api.refusal import Reason
from orch_sidecar.pools.status import status_of
from tests.orch_sidecar.admission.examples import (
    STEP_TIME,
    bulk,
    class_rules,
    core_of,
    fill,
    granted,
    interactive,
    queue,
    reason_of,
    report,
    rules,
)


def core_with(slots: int = 4, lost_s: float | None = 10.0, **changes: Any) -> AdmissionController:
    """A step takes 10 ms and one for each sequence; a first token is due in 200 ms. `lost_s`: work
    that may be lost, in seconds of a slot; None: what the time allows."""
    values = {"reclaim": True} | changes
    of_rules = rules(class_rules(ttft_p95_ms=200.0), **values)
    core = core_of(slots, of_rules, step_time=STEP_TIME)
    core.reclaim.is_unseen = lambda _: True
    if lost_s is not None:
        core.reclaim._allowed, core.reclaim._refill = lost_s, lambda now: None  # type: ignore[method-assign]
    return core


def full(core: AdmissionController, at: float = 20.0) -> None:
    """Four bulk requests that will take 14 s each; the last one began a second ago."""
    fill(core, bulk(max_tokens=1000), "b0", "b1", "b2", at=at - 5)
    fill(core, bulk(max_tokens=1000), "b3", at=at - 1)


def test_the_request_with_the_least_work_done_gives_its_slot() -> None:
    core = core_with()
    full(core)
    assert isinstance(core.arrive("i", interactive(), 20.0), Queued)
    assert core.reclaim.take() == ["b3"]
    assert core.reclaim.take() == [], "each once"
    lease = core.ledger.get("b3")
    assert lease is None, "it is closing"
    assert core.ledger.leased == 4, "its slot is not free before the engine has confirmed the end"
    assert granted(core.release("b3", 20.03)) == ["i"]
    assert status_of(core, 20.03).reclaimed == 1


def test_no_request_gives_its_slot_while_another_sidecar_would_get_it() -> None:
    core = core_with()
    full(core)
    core.engine_reports(report(4, sidecars=2, contended=True, step_time=STEP_TIME), 20.0)
    assert reason_of(core.arrive("i", interactive(), 20.0)) is Reason.SLO_MISS
    assert core.reclaim.take() == []


def test_it_is_queued_again_before_all_that_came_later() -> None:
    core = core_with()
    full(core)
    core.arrive("later", bulk(max_tokens=10), 19.5)
    core.arrive("i", interactive(), 20.0)
    [name] = core.reclaim.take()
    core.requeue("again", bulk(max_tokens=1000), 19.0, 20.01)
    assert granted(core.release(name, 20.03)) == ["i"], "not the one that gave its slot"
    assert granted(core.release("i", 21.0, 10)) == ["again"]


def test_nothing_is_taken_while_a_bulk_request_that_is_owed_slots_would_get_them() -> None:
    core = core_with(bulk_share=0.1)
    full(core)
    queue(core, bulk(max_tokens=1000), "waits", at=19.5)
    core.constraints.reserve.interactive.slots = 3.0
    core.constraints.reserve.guarantee.owed = 24.0
    assert reason_of(core.arrive("i", interactive(max_tokens=600), 20.0)) is Reason.SLO_MISS
    assert core.reclaim.take() == []


def test_no_request_is_taken_that_would_get_its_slots_again_at_once() -> None:
    """Bulk requests are owed more than the one that is taken would have to claim."""
    core = core_with(bulk_share=0.1)
    full(core)
    core.constraints.reserve.guarantee.owed = 24.0
    assert reason_of(core.arrive("i", interactive(max_tokens=600), 20.0)) is Reason.SLO_MISS
    assert core.reclaim.take() == []


def test_no_request_is_taken_that_interactive_traffic_has_delayed_by_the_bound() -> None:
    core = core_with(1, aging_s=10.0)
    fill(core, interactive(max_tokens=5000), "i0")
    queue(core, bulk(max_tokens=1000), "b")
    assert granted(core.release("i0", 12.0, 5000)) == ["b"]
    assert reason_of(core.arrive("i1", interactive(max_tokens=300), 12.5)) is Reason.SLO_MISS
    assert core.reclaim.take() == []


def test_the_delay_before_it_gave_its_slots_counts() -> None:
    core = core_with(1, aging_s=10.0)
    first, again = bulk(max_tokens=1000), "b again"
    fill(core, interactive(max_tokens=1000), "i0")
    queue(core, first, "b")
    assert granted(core.release("i0", 8.0, 1000)) == ["b"]
    assert isinstance(core.arrive("i1", interactive(max_tokens=300), 8.5), Queued)
    assert core.reclaim.take() == ["b"]
    core.requeue(again, first, 0.5, 8.5)
    assert granted(core.release("b", 8.53)) == ["i1"]
    late = interactive(max_tokens=300)
    core.dispatch(10.9)
    core.queues.add(core.enqueuer._queued("i2", late, 10.9, 10.9))
    assert granted(core.release("i1", 11.0, 300)) == [again], "after 8 s and 2.5 s"


@pytest.mark.parametrize(
    "limited",
    [bulk(max_tokens=1000, max_wait_ms=5000.0), bulk(max_tokens=1000, deadline_ms=5000.0)],
)
def test_no_request_is_taken_that_has_a_time_limit_of_its_own(limited: AdmissionRequest) -> None:
    """It has its slots within that: it would be refused for the sake of another."""
    core = core_with(1)
    fill(core, limited, "b", at=17.0)
    assert reason_of(core.arrive("i", interactive(max_tokens=700), 18.0)) is Reason.SLO_MISS
    assert core.reclaim.take() == []


def test_nothing_is_taken_where_bulk_requests_have_an_slo_of_their_first_token() -> None:
    core = core_with(1, bulk=class_rules(ttft_p95_ms=5000.0))
    fill(core, bulk(max_tokens=1000), "b", at=17.0)
    assert reason_of(core.arrive("i", interactive(max_tokens=700), 18.0)) is Reason.SLO_MISS
    assert core.reclaim.take() == []


def test_a_request_that_gave_its_slots_may_wait_as_long_again() -> None:
    """It waited for 59 s of 60, and is not refused a second later."""
    core = core_with(1, aging_s=None)
    first = bulk(max_tokens=1000)
    fill(core, bulk(max_tokens=5300), "b0")
    queue(core, first, "b")
    assert granted(core.release("b0", 59.0, 5300)) == ["b"]
    assert isinstance(core.arrive("i", interactive(max_tokens=300), 59.5), Queued)
    assert core.reclaim.take() == ["b"]
    core.requeue("again", first, 0.5, 59.5)
    assert granted(core.release("b", 59.53)) == ["i"]
    assert core.dispatch(61.0) == []
    assert granted(core.release("i", 62.0, 300)) == ["again"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"reclaim": False}, "the profile does not allow it"),
        ({"bulk_share": 0.9}, "bulk has no more than its share"),
    ],
)
def test_rules_can_forbid_it(changes: dict[str, Any], why: str) -> None:
    core = core_with(**changes)
    full(core)
    assert reason_of(core.arrive("i", interactive(), 20.0)) is Reason.SLO_MISS, why
    assert core.reclaim.take() == []


def test_a_response_that_a_client_has_seen_is_left_alone() -> None:
    core = core_with()
    full(core)
    core.reclaim.is_unseen = lambda lease: lease == "b1"
    core.arrive("i", interactive(), 20.0)
    assert core.reclaim.take() == ["b1"]


def test_no_request_is_taken_that_ends_in_time() -> None:
    core = core_with(1)
    fill(core, bulk(max_tokens=20), "b", at=19.9)
    core.arrive("i", interactive(max_tokens=1), 20.0)
    assert core.reclaim.take() == []


def test_nothing_is_taken_if_that_is_too_late_as_well() -> None:
    """Two steps of 11 ms until the end is confirmed, and the first token needs more than 170 ms."""
    core = core_with(1)
    core.service_times.prompts.tokens_per_s = 1000.0
    fill(core, bulk(max_tokens=1000), "b", at=19.0)
    assert reason_of(core.arrive("i", interactive(prompt_tokens=170), 20.0)) is Reason.SLO_MISS
    assert core.reclaim.take() == []
    assert core.ledger.get("b") is not None, "it goes on"


def test_a_deadline_of_its_own_takes_nothing() -> None:
    core = core_with()
    full(core)
    refused = core.arrive("i", interactive(deadline_ms=100.0), 20.0)
    assert reason_of(refused) is Reason.DEADLINE_MISS
    assert core.reclaim.take() == []


def test_a_request_is_taken_at_most_twice() -> None:
    core = core_with(1)
    request = bulk(max_tokens=1000)
    fill(core, request, "b", at=19.0)
    now = 20.0
    for number in range(MAX_RECLAIMS):
        core.reclaim._allowed = 10.0
        assert isinstance(core.arrive(f"i{number}", interactive(max_tokens=100), now), Queued)
        [taken] = core.reclaim.take()
        core.requeue(f"b{number}", request, now - 1, now)
        assert granted(core.release(taken, now)) == [f"i{number}"]
        now += 1.0
        assert granted(core.release(f"i{number}", now, 100)) == [f"b{number}"]
        now += 1.0
    assert reason_of(core.arrive("late", interactive(), now)) is Reason.SLO_MISS
    assert core.reclaim.take() == []


def test_what_is_lost_is_bounded_by_a_share_of_the_slots_time() -> None:
    """Over ten minutes interactive requests come that would all miss their SLO."""
    core = core_with(lost_s=None, bulk_share=0.1)
    lost, now, running = 0.0, 0.0, dict[str, float]()
    for number in range(1200):
        now = number / 2
        for name in [each for each, since in running.items() if now - since >= 14]:
            del running[name]
            core.release(name, now, 1000)
        for slot in range(core.ledger.room):
            name = f"b{number}.{slot}"
            if isinstance(core.arrive(name, bulk(max_tokens=1000, may_queue=False), now), Lease):
                running[name] = now
        core.arrive(f"i{number}", interactive(max_tokens=5), now)
        for name in core.reclaim.take():
            lost += now - running.pop(name)
            core.release(name, now + 0.03)
        core.release(f"i{number}", now + 0.2, 5)
    assert core.reclaim.count > 5
    assert lost <= LOST_SHARE * 4 * (now + 60)


def test_bulk_keeps_its_share_while_ends_are_yet_to_be_confirmed() -> None:
    core = core_with(bulk_share=0.5)
    full(core)
    taken: list[str] = []
    for number in range(4):
        core.reclaim._allowed, core.reclaim._in_vain_at = 100.0, 0.0
        core.arrive(f"i{number}", interactive(max_tokens=400), 20.0)
        taken += core.reclaim.take()
    assert len(taken) == 2

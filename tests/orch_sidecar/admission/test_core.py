"""The admission core by example. Times are literal seconds."""

from __future__ import annotations

from orch_sidecar.admission.core import Admission, Decision
from orch_sidecar.admission.ledger import Lease
from orch_sidecar.reasons import Reason, Refusal

STALE = Refusal(Reason.ENGINE_STALE, "no event for 3 s")


def admission_of(slots: int, *, capacity: int = 16, timeout_s: float = 60.0) -> Admission:
    core = Admission(capacity, timeout_s)
    assert core.engine_reports("e1", slots, 0, 0.0) == []
    return core


def reason_of(outcome: Lease | Refusal | None) -> Reason:
    assert isinstance(outcome, Refusal)
    return outcome.reason


def admitted(decisions: list[Decision]) -> list[str]:
    return [d.request for d in decisions if isinstance(d.outcome, Lease)]


def test_nothing_is_admitted_before_the_engine_has_reported() -> None:
    core = Admission(16, 60.0)
    assert reason_of(core.arrive("a", 1, 0.0)) is Reason.ENGINE_STARTING


def test_request_that_fits_gets_its_lease_at_once() -> None:
    core = admission_of(4)
    assert core.arrive("a", 4, 0.0) == Lease("a", 4, "e1")
    assert core.ledger.room == 0


def test_request_that_does_not_fit_waits_and_is_admitted_on_release() -> None:
    core = admission_of(1)
    core.arrive("a", 1, 0.0)
    assert core.arrive("b", 1, 1.0) is None
    assert core.queue_depth == 1
    assert core.release("a", 2.0) == [Decision("b", Lease("b", 1, "e1"))]
    assert core.queue_depth == 0


def test_cost_above_the_slots_is_refused_with_both_numbers() -> None:
    outcome = admission_of(4).arrive("a", 5, 0.0)
    assert isinstance(outcome, Refusal)
    assert outcome.reason is Reason.COST_EXCEEDS_SLOTS
    assert "5 sequences" in outcome.message
    assert "4 slots" in outcome.message


def test_large_request_at_the_head_is_not_passed_by_smaller_ones() -> None:
    core = admission_of(4)
    core.arrive("a", 3, 0.0)
    assert core.arrive("large", 4, 1.0) is None
    assert core.arrive("small", 1, 2.0) is None, "a slot is free, but the large one came first"
    decisions = core.release("a", 3.0)
    assert admitted(decisions) == ["large"]
    assert admitted(core.release("large", 4.0)) == ["small"]


def test_one_release_admits_as_many_as_fit_in_order_of_arrival() -> None:
    core = admission_of(4)
    core.arrive("a", 4, 0.0)
    for name in ("b", "c", "d"):
        core.arrive(name, 2, 1.0)
    assert admitted(core.release("a", 2.0)) == ["b", "c"]


def test_full_queue_refuses_with_a_time_to_come_back() -> None:
    core = admission_of(1, capacity=1)
    core.arrive("a", 1, 0.0)
    core.arrive("b", 1, 0.0)
    outcome = core.arrive("c", 1, 0.0)
    assert isinstance(outcome, Refusal)
    assert outcome.reason is Reason.QUEUE_FULL
    assert outcome.retry_after_ms is not None


def test_retry_after_counts_the_cost_of_all_who_are_queued() -> None:
    core = admission_of(4, capacity=2)
    core.arrive("a", 4, 0.0)
    core.release("a", 0.0)
    core.arrive("b", 4, 0.0)
    core.release("b", 4.0)  # 4 slots in 4 s: one per second
    core.arrive("c", 4, 4.0)
    core.arrive("d", 2, 4.0)
    core.arrive("e", 3, 4.0)
    outcome = core.arrive("f", 1, 4.0)
    assert isinstance(outcome, Refusal)
    assert outcome.retry_after_ms == 6000


def test_queue_of_capacity_zero_admits_what_fits_and_refuses_the_rest() -> None:
    core = admission_of(1, capacity=0)
    assert isinstance(core.arrive("a", 1, 0.0), Lease)
    assert reason_of(core.arrive("b", 1, 0.0)) is Reason.QUEUE_FULL


def test_expired_request_is_refused_and_frees_no_slot() -> None:
    core = admission_of(1, timeout_s=10.0)
    core.arrive("a", 1, 0.0)
    core.arrive("b", 1, 1.0)
    assert core.next_deadline() == 11.0
    assert core.tick(10.9) == []
    [decision] = core.tick(11.0)
    assert decision.request == "b"
    assert reason_of(decision.outcome) is Reason.QUEUE_TIMEOUT
    assert core.ledger.leased == 1
    assert core.next_deadline() is None


def test_expiry_of_the_head_admits_those_behind_it_who_fit() -> None:
    core = admission_of(4, timeout_s=10.0)
    core.arrive("a", 3, 0.0)
    core.arrive("large", 2, 1.0)
    core.arrive("small", 1, 5.0)
    decisions = core.tick(11.0)
    assert [decision.request for decision in decisions] == ["large", "small"]
    assert admitted(decisions) == ["small"]


def test_leaving_the_queue_admits_those_behind_who_fit() -> None:
    core = admission_of(4)
    core.arrive("a", 3, 0.0)
    core.arrive("large", 2, 1.0)
    core.arrive("small", 1, 2.0)
    assert admitted(core.leave("large", 3.0)) == ["small"]
    assert core.leave("large", 4.0) == []


def test_abandoned_lease_frees_its_slot_only_when_the_engine_says_so() -> None:
    core = admission_of(1)
    core.arrive("a", 1, 0.0)
    core.arrive("b", 1, 0.0)
    core.abandon("a")
    assert core.tick(1.0) == []
    assert core.engine_reports("e1", 1, 0, 2.0) == []
    assert admitted(core.engine_ended(["a"], 3.0)) == ["b"]
    assert core.engine_ended(["a"], 4.0) == []


def test_foreign_traffic_holds_up_and_its_end_admits() -> None:
    core = admission_of(2)
    core.engine_reports("e1", 2, 2, 0.0)
    assert core.arrive("a", 1, 1.0) is None
    assert admitted(core.engine_reports("e1", 2, 1, 2.0)) == ["a"]


def test_unavailable_engine_refuses_arrivals_and_keeps_those_queued() -> None:
    core = admission_of(1)
    core.arrive("a", 1, 0.0)
    core.arrive("b", 1, 0.0)
    core.engine_unavailable(STALE)
    assert core.arrive("c", 1, 1.0) is STALE
    assert core.release("a", 2.0) == [], "stale fails closed"
    assert core.queue_depth == 1
    assert admitted(core.engine_reports("e1", 1, 0, 3.0)) == ["b"]


def test_expiry_while_the_engine_is_unavailable_says_why() -> None:
    core = admission_of(1, timeout_s=10.0)
    core.arrive("a", 1, 0.0)
    core.arrive("b", 1, 0.0)
    core.engine_unavailable(STALE)
    assert core.tick(10.0) == [Decision("b", STALE)]


def test_new_epoch_frees_what_the_old_engine_held() -> None:
    core = admission_of(1)
    core.arrive("a", 1, 0.0)
    core.arrive("b", 1, 0.0)
    [decision] = core.engine_reports("e2", 1, 0, 1.0)
    assert decision == Decision("b", Lease("b", 1, "e2"))
    assert core.release("a", 2.0) == [], "a lease of the old epoch is gone"
    assert core.ledger.leased == 1


def test_queued_request_that_can_no_longer_fit_is_refused_when_slots_shrink() -> None:
    core = admission_of(4)
    core.arrive("a", 4, 0.0)
    core.arrive("large", 4, 0.0)
    core.arrive("small", 1, 0.0)
    decisions = core.engine_reports("e2", 2, 0, 1.0)
    assert [decision.request for decision in decisions] == ["large", "small"]
    assert reason_of(decisions[0].outcome) is Reason.COST_EXCEEDS_SLOTS
    assert isinstance(decisions[1].outcome, Lease)


def test_draining_refuses_arrivals_and_serves_those_queued() -> None:
    core = admission_of(1)
    core.arrive("a", 1, 0.0)
    core.arrive("b", 1, 0.0)
    core.drain()
    assert core.draining
    assert reason_of(core.arrive("c", 1, 1.0)) is Reason.DRAINING
    assert admitted(core.release("a", 2.0)) == ["b"]


def test_dismissal_refuses_all_who_are_queued() -> None:
    core = admission_of(1)
    core.arrive("a", 1, 0.0)
    core.arrive("b", 1, 0.0)
    core.arrive("c", 1, 0.0)
    decisions = core.dismiss()
    assert [decision.request for decision in decisions] == ["b", "c"]
    assert {reason_of(decision.outcome) for decision in decisions} == {Reason.DRAINING}
    assert core.queue_depth == 0
    assert core.dismiss() == []

"""Idle requests: in whose slots they run, when they leave them, and that nobody else notices."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orch_sidecar.admission.constraints.idle import (
    BULK_SHARE,
    DECODES_SHARE,
    MAX_SAVED_S,
    PROMPTS_SHARE,
    QUIET_S,
    DelayBudget,
)
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease, Queued, StepTime
from orch_sidecar.api.refusal import Reason
from orch_sidecar.pools.status import status_of
from tests.fuzz import examples
from tests.orch_sidecar.admission.examples import (
    BULK,
    INTERACTIVE,
    bulk,
    bulk_only,
    class_rules,
    core_of,
    fill,
    granted,
    interactive,
    kv_of,
    queue,
    reason,
    reason_of,
    report,
    rules,
)
from vllm_plugin.contracts.profile import IDLE, FullQueue

# A step of b sequences takes 10 ms and a tenth for each; 10 000 prompt tokens are read a second.
STEP = StepTime(t0_ms=10.0, c_ms=0.1, alpha=1.0, largest=64)
MEASURED: dict[str, Any] = {
    "step_time": STEP, "prefill_tokens_per_s": 10_000.0, "chunk_tokens": 500, "step_tokens": 500,
}  # fmt: skip


def idle(cost: int = 1, **asked: Any) -> AdmissionRequest:
    return AdmissionRequest(IDLE, cost, **asked)


def core_with(slots: int, of_rules: Any = None, **known: Any) -> AdmissionController:
    core = core_of(slots, of_rules, **known)
    core.reclaim.is_unseen = lambda _: True
    return core


def test_alone_they_have_all_slots() -> None:
    core = core_with(4)
    fill(core, idle(), "a", "b", "c", "d")
    queue(core, idle(), "e")
    assert core.reclaim.cut_idle(0.0) == []
    assert granted(core.release("a", 1.0)) == ["e"]


def test_what_waits_takes_their_slots_as_soon_as_the_engine_has_ended_them() -> None:
    core = core_with(2)
    fill(core, idle(), "old", "new")
    queue(core, interactive(), "i")
    assert core.reclaim.cut_idle(1.0) == ["new"], "the one that loses least"
    assert core.reclaim.cut_idle(1.0) == [], "once"
    assert core.ledger.get("new") is None, "it is closing"
    assert isinstance(core.requeue("again", idle(), 0.0, 1.0), Queued)
    assert granted(core.release("new", 1.1)) == ["i"]
    assert status_of(core, 1.1).cut == 1
    assert granted(core.release("i", 1.2)) == [], "one of two stays free for the next"


def test_one_whose_client_has_seen_something_stays() -> None:
    core = core_with(1)
    core.reclaim.is_unseen = lambda _: False
    fill(core, idle(), "row")
    queue(core, interactive(), "i")
    assert core.reclaim.cut_idle(0.0) == []


def test_a_cut_request_goes_before_those_that_never_ran() -> None:
    core = core_with(1)
    fill(core, idle(), "first")
    queue(core, idle(), "second")
    queue(core, interactive(), "i")
    assert core.reclaim.cut_idle(0.0) == ["first"]
    core.requeue("first again", idle(), 0.0, 0.0)
    core.release("first", 0.1)
    assert granted(core.release("i", 1.0)) == ["first again"]


def test_slots_that_are_expected_to_be_used_stay_free() -> None:
    core = core_with(8, **MEASURED)
    for number in range(160):  # each of them takes a second: about four slots are asked for
        now = number / 4
        fill(core, interactive(max_tokens=100), f"i{number}", at=now)
        if number >= 3:
            core.release(f"i{number - 3}", now, 100)
        core.engine_reports(report(8, **MEASURED), now)
    assert core.ledger.interactive == 3
    reserved = core.constraints.reserve.reserved(40.0)
    assert reserved > 3
    for number in range(8):
        core.arrive(f"row{number}", idle(), 40.0)
        core.engine_reports(report(8, **MEASURED), 40.0)
    assert core.ledger.idle == 5 - core.constraints.idle._spare_slots(40.0) == 2
    assert reason(core.blocked_by) in ("reserve", "idle")
    assert (core.next_event(40.0) or 0) >= 40.2, "they are looked at now and then only"


def test_beside_interactive_requests_the_batch_slows_none_down_by_much() -> None:
    free = []
    for each_ms, sidecars in ((0.4, 1), (4.0, 1), (0.4, 2)):
        step_time = StepTime(10.0, each_ms, 1.0, 64)
        known = MEASURED | {"step_time": step_time, "sidecars": sidecars}
        core = core_with(64, **known)
        fill(core, interactive(prompt_tokens=500, max_tokens=50), "i")
        core.engine_reports(report(64, **known), 0.1)
        free.append(core.constraints.idle._batch(1, 1.0))
    assert 0 < free[0] <= DECODES_SHARE * (10.4 + 50) / 0.4, "of a step with a part of a prompt"
    assert free[1] <= DECODES_SHARE * (14 + 50) / 4
    assert free[2] == free[0] // 2, "each of two sidecars"


@pytest.mark.parametrize("sidecars", [1, 2])
def test_beside_bulk_requests_decodes_and_prompts_take_a_small_share_of_the_engine(
    sidecars: int,
) -> None:
    known, share = MEASURED | {"sidecars": sidecars}, BULK_SHARE / sidecars
    core = core_with(64, **known)
    fill(core, bulk(max_tokens=1000), *(f"b{number}" for number in range(10)))
    read_s, seconds = 0.0, 30
    for tenth in range(10 * seconds):
        core.arrive(f"row{tenth}", idle(prompt_tokens=1000), tenth / 10)
        core.engine_reports(report(64, **known), tenth / 10)
        for row in [each.id for each in core.ledger.all() if each.id.startswith("row")]:
            core.release(row, tenth / 10, 10)
            read_s += 0.1
    assert 0.8 * share <= read_s / seconds <= share + 0.1 / seconds
    batch = 10 + core.constraints.idle._batch(10, 30.0)
    assert STEP.ms(10) < STEP.ms(batch) <= STEP.ms(10) / (1 - BULK_SHARE / 2)


def test_beside_interactive_requests_prompts_delay_first_tokens_by_a_small_share() -> None:
    core = core_with(8, **MEASURED)
    fill(core, interactive(prompt_tokens=500, max_tokens=1000), "i")
    began, seconds = 0, 30
    for tenth in range(10 * seconds):
        now = tenth / 10
        core.engine_reports(report(8, **MEASURED), now)
        core.arrive(f"row{tenth}", idle(prompt_tokens=1000), now)
        for row in [each.id for each in core.ledger.all() if each.id.startswith("row")]:
            core.release(row, now)
            began += 1
    # Read for 0.12 s: who comes then waits for half of what 500 of its tokens take.
    delay_s, first_token_s = 0.12 * 0.05 / 2, 0.06
    assert 0.8 <= began * delay_s / seconds / (PROMPTS_SHARE * first_token_s) <= 1


def test_what_was_spent_too_early_is_earned_first() -> None:
    savings = DelayBudget()
    savings.spend(2.0, 0.5, 0.0)
    assert savings.ready_at(0.5, 1.0) == 4.0
    assert savings.ready_at(0.5, 100.0) == 100.0
    savings.spend(0.5 * MAX_SAVED_S, 0.5, 200.0)
    assert savings.ready_at(0.5, 200.0) == 200.0, "it was saved, and no more than that"
    savings.spend(0.5, 0.5, 200.0)
    assert savings.ready_at(0.5, 200.0) == 201.0
    assert savings.ready_at(0.0, 200.0) == inf


def test_when_nobody_has_been_there_for_a_while_only_the_slots_bound_them() -> None:
    core = core_with(64, **MEASURED)
    fill(core, interactive(prompt_tokens=500, max_tokens=50), "i")
    core.engine_reports(report(64, **MEASURED), 0.1)
    core.release("i", 1.0, 50)
    core.engine_reports(report(64, **MEASURED), 1.0)
    later = 1.0 + QUIET_S + 1
    core.engine_reports(report(64, **MEASURED), later)
    assert core.constraints.idle._batch(0, later) > 64


def test_what_lacks_room_is_looked_at_now_and_then_only() -> None:
    core = core_with(4, **MEASURED)
    fill(core, interactive(), "a", "b", "c", at=1.0)
    queue(core, idle(2), "row", at=2.0)
    at = core.next_event(2.0)
    assert at is not None
    assert at >= 2.2


def test_blocks_of_the_cache_are_given_back_too() -> None:
    core = core_with(8, kv=kv_of(100))
    fill(core, idle(prompt_tokens=20, max_tokens=20), "a", "b")
    queue(core, interactive(prompt_tokens=30, max_tokens=5), "i")
    assert reason(core.blocked_by) == "kv"
    assert core.reclaim.cut_idle(0.0) == ["b"], "its blocks suffice"


def test_where_others_wait_at_the_engine_all_slots_are_given_back_and_nothing_is_claimed() -> None:
    core = core_with(4, sidecars=2)
    fill(core, idle(), "a", "b")
    assert core.engine_reports(report(4, sidecars=2, contended=True), 1.0) == []
    assert sorted(core.reclaim.cut_idle(1.0)) == ["a", "b"]
    queue(core, idle(), "c", at=1.0)
    assert core.order.claim is None


def test_a_refused_request_has_a_slot_when_it_comes_again() -> None:
    core = core_with(1)
    fill(core, idle(), "row")
    assert reason_of(core.arrive("i", interactive(may_queue=False), 0.0)) is Reason.DO_NOT_QUEUE
    assert core.reclaim.cut_idle(0.0) == ["row"]


def test_they_displace_no_other_from_a_full_queue() -> None:
    of_rules = rules(
        bulk=class_rules(queue_capacity=1), full_queue=FullQueue.DROP_LRU, aging_s=None
    )
    core = core_with(1, of_rules)
    fill(core, interactive(), "i")
    queue(core, bulk(), "b")
    queue(core, idle(), "row")
    assert reason_of(core.arrive("row2", idle(), 0.0)) is Reason.QUEUE_FULL
    assert core.queues.size(BULK) == 1


def test_no_slo_refuses_them_and_they_wait_for_a_day() -> None:
    of_rules = rules(class_rules(ttft_p95_ms=10.0), class_rules(ttft_p95_ms=10.0, max_wait_s=1.0))
    core = core_with(1, of_rules, **MEASURED)
    fill(core, interactive(), "i")
    queue(core, idle(prompt_tokens=9000, max_tokens=1000), "row")
    assert core.dispatch(86_000.0) == []
    assert reason_of(core.dispatch(86_401.0)[0].outcome) is Reason.QUEUE_TIMEOUT


def test_an_offline_engine_serves_them_after_bulk() -> None:
    core = core_with(1, bulk_only())
    fill(core, bulk(), "b")
    queue(core, idle(), "row")
    queue(core, bulk(), "b2")
    assert granted(core.release("b", 1.0)) == ["b2"]


def test_the_reserve_keeps_no_request_from_an_engine_that_only_they_use() -> None:
    for rows in ([], ["row"]):
        core = core_with(4, **MEASURED)
        core.arrive("i", interactive(4, max_tokens=2000), 0.0)
        core.release("i", 1.0)
        core.engine_reports(report(4, **MEASURED), 1.0)
        fill(core, idle(), *rows, at=1.0)
        assert core.constraints.reserve.reserved(1.0) > 1
        fill(core, bulk(3), "b", at=1.0)


def test_none_of_their_events_updates_what_others_are_owed_or_ask_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []
    core = core_with(4, **MEASURED)
    for number in range(4):
        core.arrive(f"i{number}", interactive(max_tokens=20), 0.0)
    queue(core, bulk(), "b")
    reserve = core.constraints.reserve
    for demand in (reserve.interactive, reserve.bulk):
        monkeypatch.setattr(demand, "_update_averages", asked.append)
    monkeypatch.setattr(reserve, "update", asked.append)
    queue(core, idle(), "row", at=1.0)
    core.leave("row", 1.5)
    core.requeue("again", idle(), 1.0, 2.0)
    core.queues.remove("b")
    for now in (3.0, 4.0):
        core.dispatch(now)
        core.reclaim.cut_idle(now)
    assert asked == []


ARRIVALS = st.lists(
    st.tuples(
        st.sampled_from((INTERACTIVE, BULK, IDLE, IDLE)),
        st.integers(1, 3),  # sequences
        st.sampled_from((0.0, 0.05, 0.4, 3.0)),  # seconds until then
        st.integers(0, 6),  # which of the running requests end before it
    ),
    max_size=40,
)


class Played:
    """The course of some arrivals at an engine that confirms each cut at once."""

    def __init__(self, slots: int, *, rows: bool) -> None:
        self.core = core_with(slots, **MEASURED)
        self.rows = rows
        self.started: list[str] = []  # requests of other classes, in order
        self.requests: dict[str, AdmissionRequest] = {}
        self.now = 0.0

    def play(self, arrivals: list[tuple[Any, int, float, int]]) -> list[str]:
        for number, (service_class, cost, passed_s, ending) in enumerate(arrivals):
            self.now += passed_s
            running = [each for each in self.started if self.core.ledger.owns(each)]
            if running and ending < len(running):
                self.note(self.core.release(running[ending], self.now, 10))
            self.note(self.core.engine_reports(EngineReport("e1", 4, **MEASURED), self.now))
            if service_class is not IDLE or self.rows:
                request = AdmissionRequest(service_class, cost, prompt_tokens=0, max_tokens=20)
                self.arrive(f"{service_class}{number}", request)
        return self.started

    def arrive(self, name: str, request: AdmissionRequest) -> None:
        self.requests[name] = request
        if isinstance(self.core.arrive(name, request, self.now), Lease):
            self.started += [name] if request.service_class is not IDLE else []
        self.note(self.core.take_displaced())

    def note(self, decisions: Any) -> None:
        self.started += [each for each in granted(decisions) if not each.startswith("idle")]
        while cut := self.core.reclaim.cut_idle(self.now):
            for lease in cut:
                request = self.requests.pop(lease)
                self.requests[f"{lease}'"] = request
                self.core.requeue(f"{lease}'", request, 0.0, self.now)
                self.started += [
                    each
                    for each in granted(self.core.release(lease, self.now))
                    if not each.startswith("idle")
                ]


# Idle requests wait while nobody else does, when the demand has not been updated for a while.
QUIET_THEN_MORE = [
    *((INTERACTIVE, 1, 0.0, ending) for ending in (0, 0, 1, 2)),
    (IDLE, 1, 0.0, 0),
    (IDLE, 1, 0.0, 2),
    (INTERACTIVE, 1, 3.0, 0),
    (BULK, 3, 0.0, 0),
]


@settings(max_examples=examples(200), deadline=None)
@given(arrivals=ARRIVALS)
@example(arrivals=QUIET_THEN_MORE)
def test_others_get_the_same_slots_in_the_same_order_as_without_them(
    arrivals: list[tuple[Any, int, float, int]],
) -> None:
    with_rows, without = Played(4, rows=True), Played(4, rows=False)
    assert with_rows.play(arrivals) == without.play(arrivals)
    assert with_rows.core.ledger.violations == 0

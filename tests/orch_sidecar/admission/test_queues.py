"""Which requests wait, and for how long at most.

Places of queued requests: in the order of dispatch, with the starts that were predicted.

Which request is dispatched next.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission import refusals
from orch_sidecar.admission.constraints.constraint import Constraint
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.precedence import QueueOrder
from orch_sidecar.admission.prediction import forecast
from orch_sidecar.admission.prediction.forecast import Place, Places
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest, Queued, QueuedRequest
from orch_sidecar.api.refusal import Reason
from tests.orch_sidecar.admission.bench import Bench
from tests.orch_sidecar.admission.examples import (
    STEP_TIME,
    bulk,
    class_rules,
    core_of,
    fill,
    granted,
    interactive,
    queue,
    reason,
    rules,
)
from vllm_plugin.contracts.lease_protocol import Claim
from vllm_plugin.contracts.profile import ServiceClass


def waiting(
    name: str, *, expires: float = 60.0, cost: int = 1, is_bulk: bool = False
) -> QueuedRequest:
    request = bulk(cost) if is_bulk else interactive(cost)
    return QueuedRequest(name, request, 0.0, expires, Reason.QUEUE_TIMEOUT, 0.0)


def test_those_whose_time_has_come_are_taken_out_in_the_order_of_their_limits() -> None:
    queues = Queues()
    for name, expires in (("a", 30.0), ("b", 10.0), ("c", 20.0), ("d", 40.0)):
        queues.add(waiting(name, expires=expires))
    assert [each.ticket for each in queues.expired(30.0)] == ["b", "c", "a"]
    assert queues.depth == 1
    assert queues.expired(39.9) == []


def test_requests_that_left_early_take_no_memory() -> None:
    queues = Queues()
    queues.add(waiting("stays"))
    for number in range(10_000):
        queues.add(waiting(f"r{number}", is_bulk=True))
        queues.remove(f"r{number}")
    assert len(queues._expiring._heap) < 100
    assert len(queues._delayed._heap) < 100


def test_the_longest_delay_is_of_all_bulk_requests_that_are_queued() -> None:
    queues = Queues()
    assert queues.first_bulk_delay_s() is None
    queues.add(waiting("i"))
    assert queues.first_bulk_delay_s() is None, "interactive ones have none"
    for name, delay_s in (("b", 3.0), ("c", 1.0), ("d", 2.0)):
        queues.add(replace(waiting(name, is_bulk=True), delay_s=delay_s))
    found = []
    for name in ("c", "b", "d"):
        found.append(queues.first_bulk_delay_s())
        queues.remove(name)
    assert found == [1.0, 2.0, 2.0]
    assert queues.first_bulk_delay_s() is None


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 9), st.booleans()), max_size=60)
)
def test_counts_are_those_of_the_queued_requests(steps: list[tuple[str, int, bool]]) -> None:
    """An expiry of 0 stands for leaving."""
    queues, there = Queues(), dict[str, QueuedRequest]()
    for serial, (prefix, expires, is_bulk) in enumerate(steps):
        if expires:
            new = waiting(f"{prefix}{serial}", expires=expires, cost=expires, is_bulk=is_bulk)
            queues.add(new)
            there[new.ticket] = new
        elif there:
            gone = next(iter(there))
            assert queues.remove(gone) is there.pop(gone)
        for service_class in ServiceClass:
            of_class = [w for w in there.values() if w.request.service_class is service_class]
            assert list(queues.line(service_class)) == of_class
            assert queues.size(service_class) == len(of_class)
            assert queues.cost(service_class) == sum(w.request.cost for w in of_class)
        assert queues.depth == len(there)
        assert queues.next_expiry() == min((w.expires_at for w in there.values()), default=None)


def measured(slots: int) -> AdmissionController:
    """Steps of 10 ms + 1 ms for each sequence, 1000 tokens of prompts per second."""
    of_rules = rules(class_rules(queue_capacity=5000), class_rules(queue_capacity=5000))
    return core_of(slots, of_rules, step_time=STEP_TIME, prefill_tokens_per_s=1000.0)


def test_places_are_in_the_order_of_dispatch_with_the_predicted_starts() -> None:
    """A request of 100 tokens takes 1.1 s."""
    core = measured(1)
    fill(core, interactive(max_tokens=100), "a")
    queue(core, bulk(max_tokens=100), "d")
    queue(core, interactive(max_tokens=100), "b", "c")
    places = [place for name in "bcd" if (place := core.place(name, 0.0)) is not None]
    assert [place.position for place in places] == [0, 1, 2]
    assert [place.starts_at for place in places] == pytest.approx([1.1, 2.2, 3.3])
    assert core.place("a", 0.0) is None
    assert granted(core.release("a", 1.0, 100)) == ["b"]
    place = core.place("c", 1.2)
    assert place is not None
    assert place.position == 0
    assert place.starts_at == pytest.approx(2.1, abs=0.3)


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(1, 3), st.integers(1, 50), st.sampled_from("xyz")),
        min_size=1,
        max_size=20,
    )
)
def test_the_place_of_the_last_one_is_what_it_was_given_when_it_came(
    asks: list[tuple[bool, int, int, str]],
) -> None:
    core, number = measured(3), 0
    fill(core, interactive(max_tokens=50), "0", "1", "2")
    for is_bulk, cost, tokens, key in asks:
        number += 1
        make = bulk if is_bulk else interactive
        request = make(cost, max_tokens=tokens, key=key.encode(), prompt_tokens=tokens)
        outcome = core.arrive(f"q{number}", request, 0.0)
        assert isinstance(outcome, Queued)
        core.places = Places(core.forecaster)
        place = core.place(f"q{number}", 0.0)
        assert place is not None
        assert place.position <= outcome.position, "another key that is level may go after it"
        if place.position < outcome.position or outcome.predicted_start_ms is None:
            continue
        assert place.starts_at == pytest.approx(outcome.predicted_start_ms / 1000, abs=0.001)
    queued = [core.place(f"q{each}", 0.0) for each in range(1, number + 1)]
    assert sorted(each.position for each in queued if each) == list(range(number))


def test_one_look_serves_all_requests_of_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    core, looks = measured(1), list[float]()
    fill(core, interactive(), "a")
    queue(core, interactive(), "b")
    look = core.places._predict

    def counted(blocked_by: Constraint | None, now: float, *, away: bool) -> dict[str, Place]:
        looks.append(now)
        return look(blocked_by, now, away=away)

    monkeypatch.setattr(core.places, "_predict", counted)
    assert core.place("b", 0.0) == Place(0, None)
    queue(core, interactive(), "c", at=0.01)
    assert core.place("c", 0.01) is None, "it has arrived since"
    assert core.place("c", 0.2) == Place(1, None)
    assert looks == [0.0, 0.2]


def test_starts_are_unknown_while_the_engine_is_away() -> None:
    core = measured(1)
    fill(core, interactive(max_tokens=100), "a")
    queue(core, interactive(max_tokens=100), "b")
    core.engine_unavailable(refusals.RESTARTED, 0.0)
    assert core.place("b", 0.0) == Place(0, None)


def test_requests_far_behind_start_at_the_rate_of_those_before_them() -> None:
    core = measured(1)
    fill(core, interactive(max_tokens=100), "a")
    names = [f"q{number}" for number in range(1500)]
    for name in names:
        core.arrive(name, interactive(max_tokens=100, max_wait_ms=1e7), 0.0)
    starts = [place.starts_at for name in names if (place := core.place(name, 0.0)) is not None]
    assert starts == pytest.approx([1.1 * (number + 1) for number in range(len(starts))], rel=0.01)


def test_a_queue_without_end_is_looked_at_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "_MAX_PLACES", 2)
    core = measured(1)
    fill(core, interactive(), "a")
    queue(core, interactive(), "b", "c", "d")
    assert [core.place(name, 0.0) is None for name in "bcd"] == [False, False, True]


def test_without_a_step_time_requests_start_at_the_rate_of_their_class() -> None:
    core = core_of(1)
    fill(core, bulk(max_tokens=100), "b0")
    queue(core, bulk(max_tokens=100), *(f"b{number}" for number in range(1, 6)))
    assert core.place("b1", 0.0) == Place(0, None), "nothing has ended"
    for number in range(3):
        ended_at = 4.0 * (number + 1)
        assert granted(core.release(f"b{number}", ended_at, 100)) == [f"b{number + 1}"]
    assert core.place("b4", 12.0) == Place(0, 16.0)
    assert core.place("b5", 12.0) == Place(1, 20.0)
    queue(core, interactive(max_tokens=100), "i", at=13.0)
    assert core.place("i", 13.0) == Place(0, None), "none of its class has ended"


class Line(Bench):
    """An order and what it looks at: 4 slots, and an aging bound of 10 s."""

    def __init__(self) -> None:
        super().__init__(4)
        self.limit(interactive=4, bulk=4, mixed=4)
        self.order = QueueOrder(self.constraints)

    def next(self, now: float = 0.0) -> str | None:
        waiting = self.order.next(now)
        return None if waiting is None else waiting.ticket

    def blocks(self, request: AdmissionRequest, now: float = 0.0) -> Constraint | None:
        self.constraints.set_kv(request)
        return self.order.blocking(request, now)


def test_empty_queue_dispatches_nothing() -> None:
    line = Line()
    assert (line.next(), line.order.blocked_by, line.order.changes_at(0.0)) == (None, None, None)


def test_request_that_arrives_before_a_dispatch_waits_for_those_ahead() -> None:
    line = Line()
    line.wait(bulk(), "b")
    assert line.order.blocked_by is None
    assert reason(line.blocks(bulk())) == "slot"
    assert line.blocks(interactive()) is None


def test_a_bulk_request_that_is_due_waits_for_slots_only() -> None:
    line = Line()
    line.constraints.reserve.interactive.slots = 4.0
    line.grant(interactive())
    line.wait(bulk(3), "b")
    assert reason(line.blocks(bulk(3))) == "slot", "one of its class is ahead"
    assert reason(line.constraints.blocking(bulk(3), 0.0)) == "reserve"
    line.constraints.reserve.clock.set_share(1.0, 0.0)  # interactive ones take all
    line.wait(interactive(4), "i")
    assert line.next(10.0) == "b"
    line.grant(interactive())
    assert line.next(10.0) is None
    assert reason(line.order.blocked_by) == "slot"
    assert reason(line.blocks(interactive(), 10.0)) == "slot", "no other overtakes it now"


def test_offer_ends_a_pause_for_which_slots_are_claimed() -> None:
    line = Line()
    line.constraints.offers.sidecars = 2
    line.wait(bulk(2), "b")
    line.constraints.pause.begin(0.5, 0.0, offered=False)
    assert line.next(0.1) is None
    assert (reason(line.order.blocked_by), line.order.changes_at(0.1)) == ("pause", 0.5)
    assert line.order.claim == Claim(2, urgent=False)
    line.constraints.offers.offer(2, 1)
    assert line.next(0.1) == "b"


def test_rejection_under_an_offer_claims_no_slots_until_the_pause_has_ended() -> None:
    """The child lacks something else than slots: it would get offers again and again in vain."""
    line = Line()
    line.constraints.offers.sidecars = 2
    line.wait(bulk(2), "b")
    line.constraints.pause.begin(0.5, 0.0, offered=True)
    assert line.next(0.1) is None
    assert (reason(line.order.blocked_by), line.order.claim) == ("pause", None)
    assert line.next(0.5) == "b"


def test_the_time_of_a_delayed_request_is_foreseen() -> None:
    line = Line()
    line.grant(interactive(4))
    line.wait(bulk(), "b")
    line.constraints.reserve.clock.set_share(0.5, 0.0)
    line.next(0.0)
    assert reason(line.order.blocked_by) == "slot"
    assert line.order.changes_at(0.0) == 20.0
    assert line.order.changes_at(20.0) is None, "it has come, and the slot has not"


def test_a_moment_that_was_foreseen_is_a_moment_at_which_it_is_so() -> None:
    """However the sums are rounded, also if the clock stands still from then on."""
    for hundredths in range(1, 400):
        line = Line()
        line.grant(interactive(4))
        line.constraints.reserve.clock.set_share(1.0, 0.0)
        line.constraints.reserve.clock.set_share(0.3, hundredths / 100)
        line.wait(bulk(), "b")
        at = line.order.changes_at(hundredths / 100)
        assert at is not None
        line.constraints.reserve.clock.set_share(0.0, at)
        again = line.order.changes_at(at)
        assert again is None or again > at

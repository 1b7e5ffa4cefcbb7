"""Which requests wait, and for how long at most."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import QueuedRequest
from orch_sidecar.api.refusal import Reason
from tests.orch_sidecar.admission.examples import bulk, interactive
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

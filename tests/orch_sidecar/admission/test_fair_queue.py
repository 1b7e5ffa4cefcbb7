"""The order of one class, fair between keys."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch_sidecar.admission.fair_queue import MAX_LISTED_REQUESTS, FairQueue
from orch_sidecar.admission.key_share import FIRST_MEAN_TOKENS
from orch_sidecar.admission.types import AdmissionRequest, Lease, QueuedRequest
from orch_sidecar.api.refusal import Reason
from tests.fuzz import examples
from vllm_plugin.contracts.profile import ServiceClass


def request(key: str, weight: float = 1.0, cost: int = 1) -> AdmissionRequest:
    return AdmissionRequest(ServiceClass.BULK, cost, key=key.encode(), weight=weight)


def waiting(
    ticket: str, key: str, tokens: int = 10, *, weight: float = 1.0, arrived: float = 0.0
) -> QueuedRequest:
    """A queued request of a key."""
    asked = request(key, weight)
    return QueuedRequest(ticket, asked, arrived, 60.0, Reason.QUEUE_TIMEOUT, 0.0, tokens)


def queue_of(*queued: QueuedRequest) -> FairQueue:
    queue = FairQueue()
    for each in queued:
        queue.add(each)
    return queue


def order(queue: FairQueue) -> str:
    return " ".join(each.ticket for each in queue)


def dispatch(queue: FairQueue) -> tuple[str, Lease]:
    """Dispatches the next request. Returns its ticket and its lease."""
    head = queue.head()
    assert head is not None
    queue.remove(head)
    lease = Lease(head.ticket, head.request.cost, "e1", head.request)
    queue.granted(lease, head)
    return head.ticket, lease


def at_once(queue: FairQueue, key: str) -> Lease:
    """A request of this key that is never queued."""
    asked = request(key)
    lease = Lease("at once", 1, "e1", asked)
    queue.granted_at_once(lease, asked)
    return lease


def settle(queue: FairQueue, lease: Lease, took: int) -> None:
    assert lease.request is not None
    queue.settle(lease, lease.request, took)


def dispatch_all(queue: FairQueue) -> str:
    return " ".join(dispatch(queue)[0] for _ in range(queue.size))


def test_an_idle_key_keeps_no_credit() -> None:
    """Of two keys the one that comes back later has no more than its half from then on."""
    queue = FairQueue()
    settle(queue, at_once(queue, "b"), 10)
    for _ in range(50):
        settle(queue, at_once(queue, "a"), 10)
    for name in "ab":
        for number in range(4):
            queue.add(waiting(f"{name}{number}", name))
    turns = dispatch_all(queue)
    assert turns in ("b0 a0 b1 a1 b2 a2 b3 a3", "b0 b1 a0 b2 a1 b3 a2 a3")


def test_a_request_that_is_never_queued_counts_as_what_is_usual_for_its_key() -> None:
    queue = FairQueue()
    for _ in range(100):
        settle(queue, at_once(queue, "a"), 1000)
    assert at_once(queue, "a").expected_tokens == pytest.approx(1000, abs=8)
    assert at_once(queue, "b").expected_tokens == FIRST_MEAN_TOKENS


def test_settling_corrects_what_was_expected_too_much_or_too_little() -> None:
    queue = queue_of(
        *(waiting(f"a{n}", "a", 40) for n in range(3)),
        *(waiting(f"b{n}", "b", 40) for n in range(3)),
    )
    (_, first), (_, second) = dispatch(queue), dispatch(queue)
    assert order(queue) == "a1 b1 a2 b2"
    settle(queue, second, 1)
    assert order(queue) == "b1 a1 b2 a2"
    settle(queue, first, 400)
    assert order(queue) == "b1 b2 a1 a2"


def test_a_refund_does_not_delay_keys_that_came_since() -> None:
    """A key whose requests were expected to be far longer than they are leads by none of that."""
    queue = FairQueue()
    leases = [at_once(queue, "a") for _ in range(8)]
    assert [each.expected_tokens for each in leases] == [FIRST_MEAN_TOKENS] * 8
    for number in range(3):
        queue.add(waiting(f"a{number}", "a", 10))
        queue.add(waiting(f"b{number}", "b", 10))
    for each in leases:
        settle(queue, each, 10)
    assert order(queue) == "b0 b1 b2 a0 a1 a2"


def test_a_requeued_request_goes_before_all_that_were_not_dispatched() -> None:
    queue = queue_of(waiting("a0", "a", arrived=2.0), waiting("b0", "b", arrived=1.0))
    ticket, lease = dispatch(queue)
    assert ticket == "a0"
    settle(queue, lease, 0)
    queue.add(waiting("a0", "a", arrived=2.0), at_head=True)
    assert order(queue) == "a0 b0", "although that came before"
    queue.add(waiting("c0", "c", arrived=1.5), at_head=True)
    assert order(queue) == "c0 a0 b0", "among each other they keep the order of their arrival"
    assert dispatch_all(queue) == "c0 a0 b0"


def test_many_that_were_dispatched_before_go_ahead_of_one_that_comes() -> None:
    queue = FairQueue()
    many = MAX_LISTED_REQUESTS + 1
    for number in range(many):
        queue.add(waiting(f"a{number}", "a", 10), at_head=True)
    assert queue.ahead(waiting("b", "b").request).requests == many


def test_after_a_restart_of_the_engine_nothing_is_expected_of_what_ran() -> None:
    queue = queue_of(waiting("a", "a"), waiting("b", "b"))
    at_once(queue, "a")
    assert order(queue) == "b a"
    queue.forget_running()
    assert order(queue) == "a b"
    assert queue.shares[b"a"].running == 0


def test_the_key_with_most_requests_gives_its_last_one_to_a_key_with_fewer() -> None:
    queue = queue_of(
        *(waiting(f"a{n}", "a") for n in range(5)),
        *(waiting(f"b{n}", "b", weight=4.0) for n in range(8)),
    )
    leaving = queue.displaced_by(request("c"))
    assert leaving is not None
    assert leaving.ticket == "a4", "eight with the weight 4 are fewer than five"
    assert queue.displaced_by(request("a")) is None
    assert queue.displaced_by(request("b", 4.0)) is leaving
    queue.remove(leaving)
    for number in range(3):
        queue.remove(waiting(f"a{number}", "a"))
    leaving = queue.displaced_by(request("c"))
    assert leaving is not None
    assert leaving.ticket == "b7"
    assert queue_of(waiting("a", "a")).displaced_by(request("b")) is None, "each would have one"


# How much goes before a request


def test_a_new_key_has_nothing_before_it_and_others_their_own_and_their_turns() -> None:
    queue = queue_of(*(waiting(f"a{n}", "a") for n in range(9)), waiting("b0", "b"))
    assert queue.ahead(request("a")) == (10, 10, 100)
    assert queue.ahead(request("b")).requests == 3, "a0, b0 and a1"
    assert queue.ahead(request("c")).requests == 2, "the first of each came before"
    dispatch(queue)
    dispatch(queue)
    assert queue.ahead(request("c")) == (0, 0, 0)


def test_keys_that_came_once_are_forgotten() -> None:
    queue = FairQueue()
    for number in range(20_000):
        settle(queue, at_once(queue, f"key{number}"), 10)
    assert len(queue.shares) <= 4096


def test_a_key_with_queued_or_running_requests_is_never_forgotten() -> None:
    queue = queue_of(waiting("a", "waits"))
    running = at_once(queue, "runs")
    for number in range(10_000):
        settle(queue, at_once(queue, f"key{number}"), 10)
    settle(queue, running, 10)
    assert queue.shares[b"runs"].served == 10
    assert dispatch_all(queue) == "a"


def test_a_higher_weight_counts_at_once() -> None:
    """What a key was served beyond its share by the lower weight delays it no longer by that."""
    queue = queue_of(*(waiting(f"b{n}", "b") for n in range(40)))
    queue.add(waiting("a0", "a", weight=0.001))
    settle(queue, dispatch(queue)[1], 10)
    name, lease = dispatch(queue)
    assert name == "a0"
    settle(queue, lease, 10)
    queue.add(waiting("a1", "a", weight=1000.0))
    assert "a1" in order(queue).split()[:3]


def test_a_request_that_took_nothing_is_not_what_is_usual() -> None:
    queue = FairQueue()
    for _ in range(50):
        settle(queue, at_once(queue, "a"), 0)
    assert at_once(queue, "a").expected_tokens == FIRST_MEAN_TOKENS


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 40), st.sampled_from((0.5, 1.0, 3.0))),
        min_size=2,
        max_size=12,
    )
)
@settings(max_examples=examples(100), deadline=None)
def test_what_is_queued_before_a_request_is_estimated_where_much_is_queued(
    keys: list[tuple[int, int, float]],
) -> None:
    """`keys`: requests of each, tokens of one, weight."""
    queue = FairQueue()
    for number, (requests, tokens, weight) in enumerate(keys):
        for serial in range(requests):
            queue.add(waiting(f"{number} {serial}", f"{number}", tokens, weight=weight))
    for number, (_, tokens, weight) in enumerate(keys):
        asked = request(f"{number}", weight)
        exact = [each.expected_tokens for each in queue.before(asked)]
        found = queue.ahead(asked)
        if queue.size <= MAX_LISTED_REQUESTS:
            assert found == (len(exact), len(exact), sum(exact))
        assert abs(found.requests - len(exact)) <= len(keys)
        assert abs(found.tokens - sum(exact)) <= sum(tokens for _, tokens, _ in keys)


def key_of(lease: Lease) -> str:
    assert lease.request is not None
    return lease.request.key.decode()


STEPS = st.lists(
    st.tuples(
        st.integers(0, 7),  # which of the running requests ends
        st.integers(1, 100),  # the expected tokens of the next of its key
        st.integers(1, 100),  # what the next takes
        st.sampled_from((False, False, False, True)),  # another key comes
    ),
    min_size=20,
    max_size=120,
)


@given(
    st.sampled_from((1, 2, 3, 8)),
    st.lists(st.sampled_from((0.5, 1.0, 3.0)), min_size=2, max_size=4),
    STEPS,
    st.booleans(),
)
@settings(max_examples=examples(200), deadline=None)
def test_backlogged_keys_are_never_further_apart_than_the_slots_with_the_largest_request(
    slots: int, weights: list[float], steps: list[tuple[int, int, int, bool]], together: bool
) -> None:
    """By weight. `together`: all keys come at once; then it is the difference of their service.

    Else it is that of their virtual times, and their service in any interval differs by at most
    twice as much.
    """
    queue, running = FairQueue(), list[tuple[Lease, int]]()
    served = dict.fromkeys(map(str, range(len(weights))), 0)
    keys, serial = list[str](), 0

    def refill(key: str, expected: int) -> None:
        nonlocal serial
        share = queue.shares.get(key.encode())
        while share is None or len(share.queue) < 2:
            serial += 1
            queue.add(waiting(f"{serial}", key, expected, weight=weights[int(key)]))
            share = queue.shares[key.encode()]

    def come(expected: int) -> None:
        keys.append(str(len(keys)))
        refill(keys[-1], expected)

    for _ in weights if together else weights[:1]:
        come(steps[0][1])
    for ends, expected, took, comes in steps:
        if comes and len(keys) < len(weights):
            come(expected)
        while len(running) < slots:
            _, lease = dispatch(queue)
            refill(key_of(lease), expected)
            running.append((lease, took))
        ended, actual = running.pop(ends % len(running))
        settle(queue, ended, actual)
        served[key_of(ended)] += actual
        for one, other in combinations(keys, 2):
            lightest = min(weights[int(one)], weights[int(other)])
            bound = slots * 100 / lightest + 1e-6
            levels = [queue.shares[key.encode()].level for key in (one, other)]
            assert abs(levels[0] - levels[1]) <= bound
            if together:
                shares = [served[key] / weights[int(key)] for key in (one, other)]
                assert abs(shares[0] - shares[1]) <= bound


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("add", "add", "add", "go", "go", "leave", "end", "requeue")),
            st.sampled_from("abc"),
            st.integers(1, 50),
        ),
        max_size=80,
    )
)
@settings(max_examples=examples(200), deadline=None)
def test_the_order_that_is_shown_is_the_order_of_dispatch(
    steps: list[tuple[str, str, int]],
) -> None:
    """And no sum is lost, whatever comes, goes, leaves and comes back."""
    queue, queued = FairQueue(), dict[str, QueuedRequest]()
    running: list[tuple[QueuedRequest, Lease]] = []
    for serial, (what, key, tokens) in enumerate(steps):
        if what == "add":
            new = queued[f"{serial}"] = waiting(f"{serial}", key, tokens, arrived=serial)
            queue.add(new)
        elif what == "go" and queued:
            ticket, lease = dispatch(queue)
            running.append((queued.pop(ticket), lease))
        elif what == "leave" and queued:
            queue.remove(queued.pop(next(iter(queued))))
        elif what in ("end", "requeue") and running:
            ended, lease = running.pop(tokens % len(running))
            settle(queue, lease, 0 if what == "requeue" else tokens)
            if what == "requeue":
                queue.add(ended, at_head=True)
                queued[ended.ticket] = ended
        assert {each.ticket for each in queue} == queued.keys()
        assert queue.size == queue.cost == len(queued)
        most = max((len(share.queue) for share in queue.shares.values()), default=0)
        leaves = queue.displaced_by(request("another"))
        assert (leaves is None) == (most <= 1)
        if leaves is not None:
            assert len(queue.shares[leaves.request.key].queue) == most
        assert queue.tokens == sum(each.expected_tokens for each in queued.values())
    for name in "abc":
        share = queue.shares.get(name.encode())
        mine = [lease for _, lease in running if key_of(lease) == name]
        assert share is None or share.running_tokens == sum(each.expected_tokens for each in mine)
    assert order(queue) == dispatch_all(queue)

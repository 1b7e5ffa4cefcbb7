"""What holds of the order of one class, whatever happens."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from orch_sidecar.admission.fairness.fair_queue import MAX_LISTED_REQUESTS, FairQueue
from orch_sidecar.admission.types import Lease, QueuedRequest
from tests.fuzz import examples
from tests.orch_sidecar.admission.fairness.queues import (
    dispatch,
    dispatch_all,
    order,
    request,
    settle,
    waiting,
)


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
        leaves = queue.displaces(request("another"))
        assert (leaves is None) == (most <= 1)
        if leaves is not None:
            assert len(queue.shares[leaves.request.key].queue) == most
        assert queue.tokens == sum(each.expected_tokens for each in queued.values())
    for name in "abc":
        share = queue.shares.get(name.encode())
        mine = [lease for _, lease in running if key_of(lease) == name]
        assert share is None or share.running_tokens == sum(each.expected_tokens for each in mine)
    assert order(queue) == dispatch_all(queue)

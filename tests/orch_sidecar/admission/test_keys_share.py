"""Keys with a backlog in front of one engine, in virtual time: what each of them gets."""

from __future__ import annotations

import statistics

import pytest

from orch_sidecar.api.refusal import Reason
from orch_sidecar.pools.status import status_of
from tests.orch_sidecar.admission.examples import (
    bulk,
    class_rules,
    core_of,
    fill,
    interactive,
    queue,
    refused,
    rules,
)
from tests.orch_sidecar.admission.key_traffic import (
    Client,
    Length,
    Traffic,
    jain,
    lengths,
    p95,
    served,
)

# No limit stated, and one that is nearly reached.
LIMITS = pytest.mark.parametrize("max_tokens", [None, 96])


def one_by_one(max_tokens: int | None) -> Client:
    return Client(b"b", lengths(2, 64, 40, max_tokens), begins_at=0.5)


def all_at_once(max_tokens: int | None, count: int = 300) -> Client:
    return Client(b"a", lengths(1, 64, count, max_tokens), at_once=count)


@LIMITS
def test_one_by_one_beside_300_at_once_waits_at_most_twice_as_long_as_alone(
    max_tokens: int | None,
) -> None:
    alone, beside, fifo = (one_by_one(max_tokens) for _ in range(3))
    many = all_at_once(max_tokens)
    Traffic([alone]).run()
    Traffic([many, beside]).run()
    Traffic([all_at_once(max_tokens), fifo], fair=False).run()
    until = max(each.came_at + each.whole_s for each in many.requests)
    contended = [each for each in beside.requests if each.came_at < until]
    assert len(contended) >= 15
    alone_s = p95(each.whole_s for each in alone.requests)
    assert p95(each.whole_s for each in contended) <= 2 * alone_s
    assert p95(each.wait_s for each in contended) <= 0.2 * alone_s
    assert fifo.requests[0].whole_s > 10 * alone_s, "which is what fairness is for"


def test_one_by_one_beside_requests_that_all_end_at_once_waits_for_one_of_them() -> None:
    same = Length(32, 64, 64)
    one, many = Client(b"b", [same] * 20), Client(b"a", [same] * 300, at_once=300)
    Traffic([many, one]).run()
    longest_s = max(each.whole_s - each.wait_s for each in many.requests)
    assert all(each.wait_s <= 1.01 * longest_s for each in one.requests)


@LIMITS
def test_four_keys_with_requests_of_different_length_get_as_many_tokens_each(
    max_tokens: int | None,
) -> None:
    def run(fair: bool) -> tuple[float, float]:
        clients = [
            Client(bytes([each]), lengths(each, each, None, max_tokens), at_once=40)
            for each in (16, 32, 64, 128)
        ]
        traffic = Traffic(clients, fair=fair)
        traffic.run(40)
        shares = [served(each, 10, 40) for each in clients]
        return jain(shares), traffic.engine.tokens / traffic.now

    (fair, tokens_per_s), (unfair, fifo_tokens_per_s) = run(True), run(False)
    assert fair >= 0.99
    assert unfair < 0.8
    assert tokens_per_s >= 0.98 * fifo_tokens_per_s


@LIMITS
def test_keys_get_tokens_by_their_weights(max_tokens: int | None) -> None:
    one = Client(b"a", lengths(1, 64, None, max_tokens), at_once=60)
    three = Client(b"b", lengths(2, 64, None, max_tokens), at_once=60, weight=3.0)
    Traffic([one, three]).run(60)
    assert served(three, 10, 60) / served(one, 10, 60) == pytest.approx(3, rel=0.05)


def test_a_key_alone_gets_all_slots() -> None:
    one = Client(b"a", lengths(1, 64, 200), at_once=200)
    idle = Client(b"b", lengths(2, 64, 1), weight=100.0)
    traffic = Traffic([one, idle])
    traffic.run(2.0)
    assert traffic.core.ledger.leased == 16


def test_a_key_with_few_requests_enters_a_full_queue() -> None:
    many = Client(b"a", lengths(1, 64, 100), at_once=100)
    few = Client(b"b", lengths(2, 64, 4), at_once=2, begins_at=0.1)
    Traffic([many, few], capacity=50).run()
    assert not any(each.refused for each in few.requests)
    assert sum(each.refused for each in many.requests) == 100 - 16 - 50 + 2


def prediction_errors(clients: list[Client]) -> list[float]:
    """After requests of another key, from which the lengths are learned."""
    Traffic([Client(b"before", lengths(3, 64, 60), at_once=4), *clients]).run()
    return [
        (each.predicted_s - each.wait_s) / each.wait_s
        for client in clients
        for each in client.requests
        if each.predicted_s is not None and each.wait_s > 0.1
    ]


def test_a_request_that_gives_its_place_beside_bulk_work_is_refused_beside_it() -> None:
    core = core_of(4, rules(class_rules(queue_capacity=2), bulk_share=0.1))
    fill(core, bulk(4), "b")
    queue(core, interactive(key=b"many"), "m0", "m1")
    queue(core, interactive(key=b"few"), "f")
    assert refused(core.take_displaced()) == {"m1": Reason.QUEUE_FULL}
    assert status_of(core, 0.0).refused_beside_bulk == 1


def test_starts_are_predicted_by_the_backlog_of_the_own_key() -> None:
    """More is queued than is looked at one by one."""
    alone = Client(b"a", lengths(1, 64, 300), at_once=300, begins_at=8.0)
    errors = prediction_errors([alone])
    assert len(errors) > 250
    assert statistics.median(map(abs, errors)) <= 0.05
    looping = [
        Client(b"d%d" % number, lengths(number, 64, 30), at_once=10, begins_at=8.0)
        for number in range(12)
    ]
    errors = prediction_errors(looping)
    assert len(errors) > 200
    assert statistics.median(map(abs, errors)) <= 0.2
    assert abs(statistics.median(errors)) <= 0.15


def test_the_predicted_start_of_a_key_with_little_is_not_that_of_one_with_much() -> None:
    much = Client(b"a", lengths(1, 64, 200), at_once=200, begins_at=8.0)
    little = Client(b"b", lengths(2, 64, 5), at_once=5, begins_at=8.1)
    prediction_errors([much, little])
    assert little.requests[-1].predicted_s is not None
    assert much.requests[-1].predicted_s is not None
    assert little.requests[-1].predicted_s < 0.2 * much.requests[-1].predicted_s

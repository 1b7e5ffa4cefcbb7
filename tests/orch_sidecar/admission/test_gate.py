"""The asyncio shell: futures, the timer, and cancellation at every moment."""

from __future__ import annotations

import asyncio

from orch_sidecar.admission.core import Admission
from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.ledger import Lease
from orch_sidecar.reasons import Reason, Refusal


def gate_of(slots: int, *, capacity: int = 16, timeout_s: float = 60.0) -> Gate:
    gate = Gate(Admission(capacity, timeout_s))
    gate.engine_reports("e1", slots, 0)
    return gate


async def lease_of(gate: Gate, cost: int = 1) -> Lease:
    outcome = await gate.admit(cost)
    assert isinstance(outcome, Lease)
    return outcome


async def queued(gate: Gate, cost: int = 1) -> asyncio.Task[Lease | Refusal]:
    """A task that waits in the queue."""
    depth = gate.core.queue_depth
    task = asyncio.ensure_future(gate.admit(cost))
    await asyncio.sleep(0)
    assert gate.core.queue_depth == depth + 1
    return task


def assert_nothing_left(gate: Gate) -> None:
    assert gate.core.ledger.leased == 0
    assert gate.core.ledger.leases() == 0
    assert gate.core.queue_depth == 0
    assert gate._waiters == {}


async def cancelled(task: asyncio.Task[Lease | Refusal]) -> bool:
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    return isinstance(outcome, asyncio.CancelledError)


async def test_lease_ids_name_the_instance_and_the_cost_and_differ() -> None:
    gate = gate_of(8)
    first, second = await lease_of(gate, 3), await lease_of(gate, 3)
    instance, secret, cost = first.id.split(".")
    assert (instance, cost) == (gate.instance, "3")
    assert len(bytes.fromhex(secret)) == 16
    assert first.id != second.id


async def test_waiting_request_is_woken_with_its_lease() -> None:
    gate = gate_of(1)
    first = await lease_of(gate)
    waiting = await queued(gate)
    gate.release(first.id)
    second = await waiting
    assert isinstance(second, Lease)
    gate.release(second.id)
    assert_nothing_left(gate)


async def test_waiting_requests_are_woken_in_order_of_arrival() -> None:
    gate = gate_of(1)
    held = await lease_of(gate)
    order: list[int] = []

    async def one(number: int) -> None:
        lease = await lease_of(gate)
        order.append(number)
        gate.release(lease.id)

    tasks = [asyncio.ensure_future(one(number)) for number in range(5)]
    await asyncio.sleep(0)
    gate.release(held.id)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]
    assert_nothing_left(gate)


async def test_release_twice_frees_one_slot_once() -> None:
    gate = gate_of(1)
    lease = await lease_of(gate)
    gate.release(lease.id)
    await lease_of(gate)
    gate.release(lease.id)
    assert gate.core.ledger.leased == 1


async def test_cancellation_while_queued_leaves_the_queue() -> None:
    gate = gate_of(1)
    held = await lease_of(gate)
    waiting, behind = await queued(gate), await queued(gate)
    waiting.cancel()
    assert await cancelled(waiting)
    assert gate.core.queue_depth == 1
    gate.release(held.id)
    gate.release((await behind).id)  # type: ignore[union-attr]
    assert_nothing_left(gate)


async def test_cancellation_of_the_head_admits_a_smaller_one_behind_it() -> None:
    gate = gate_of(4)
    held = await lease_of(gate, 3)
    large, small = await queued(gate, 4), await queued(gate, 1)
    large.cancel()
    lease = await small
    assert isinstance(lease, Lease)
    gate.release(held.id)
    gate.release(lease.id)
    assert await cancelled(large)
    assert_nothing_left(gate)


async def test_grant_and_then_cancellation_in_one_turn_gives_the_lease_back() -> None:
    gate = gate_of(1)
    held = await lease_of(gate)
    waiting = await queued(gate)
    gate.release(held.id)
    assert gate.core.ledger.leased == 1, "it was granted"
    waiting.cancel()
    assert await cancelled(waiting)
    assert_nothing_left(gate)


async def test_cancellation_and_then_grant_in_one_turn_gives_the_lease_back() -> None:
    gate = gate_of(1)
    held = await lease_of(gate)
    waiting = await queued(gate)
    waiting.cancel()
    gate.release(held.id)
    assert gate.core.ledger.leased == 1, "it was granted"
    assert await cancelled(waiting)
    assert_nothing_left(gate)


async def test_lease_given_back_by_a_cancelled_request_goes_to_the_next() -> None:
    gate = gate_of(1)
    held = await lease_of(gate)
    first, second = await queued(gate), await queued(gate)
    gate.release(held.id)
    first.cancel()
    lease = await second
    assert isinstance(lease, Lease)
    gate.release(lease.id)
    assert await cancelled(first)
    assert_nothing_left(gate)


async def test_refusal_and_then_cancellation_in_one_turn_leaves_nothing() -> None:
    gate = gate_of(1)
    held = await lease_of(gate)
    waiting = await queued(gate)
    gate.dismiss()
    waiting.cancel()
    assert await cancelled(waiting)
    gate.release(held.id)
    assert_nothing_left(gate)


async def test_waiting_too_long_is_refused_by_the_timer() -> None:
    gate = gate_of(1, timeout_s=0.01)
    held = await lease_of(gate)
    refusals = await asyncio.gather(gate.admit(1), gate.admit(1))
    assert [r.reason for r in refusals if isinstance(r, Refusal)] == [Reason.QUEUE_TIMEOUT] * 2
    gate.release(held.id)
    assert_nothing_left(gate)
    assert gate._timer is None


async def test_timer_serves_those_who_came_after_the_one_it_was_set_for() -> None:
    """It is set for the head's deadline, and set anew when that head has long been served."""
    gate = gate_of(1, timeout_s=0.02)
    held = await lease_of(gate)
    first = await queued(gate)
    gate.release(held.id)
    lease = await first
    assert isinstance(lease, Lease)
    refusal = await asyncio.wait_for(gate.admit(1), 5)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.QUEUE_TIMEOUT


async def test_new_epoch_wakes_those_who_wait() -> None:
    gate = gate_of(1)
    old = await lease_of(gate)
    waiting = await queued(gate)
    gate.engine_reports("e2", 1, 0)
    lease = await waiting
    assert isinstance(lease, Lease)
    gate.release(old.id)
    assert gate.core.ledger.leased == 1, "the old epoch's lease frees nothing in the new one"
    gate.release(lease.id)
    assert_nothing_left(gate)


async def test_abandoned_lease_is_freed_when_the_engine_tells_its_end() -> None:
    gate = gate_of(1)
    held = await lease_of(gate)
    waiting = await queued(gate)
    gate.abandon(held.id)
    gate.engine_unavailable(Refusal(Reason.ENGINE_STALE, "no event for 3 s"))
    gate.engine_reports("e1", 1, 0)
    assert not waiting.done()
    gate.engine_ended([held.id, "unknown"])
    lease = await waiting
    assert isinstance(lease, Lease)
    gate.release(lease.id)
    assert_nothing_left(gate)


async def test_storm_of_arrivals_and_cancellations_leaks_nothing() -> None:
    gate = gate_of(4, capacity=1000)

    async def one(cost: int) -> None:
        lease = await lease_of(gate, cost)
        try:
            for _ in range(cost):
                await asyncio.sleep(0)
        finally:
            gate.release(lease.id)

    tasks = [asyncio.ensure_future(one(1 + number % 4)) for number in range(400)]
    turn = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        tasks[(turn * 7) % len(tasks)].cancel()
        turn += 1
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(task.cancelled() for task in tasks) > 10
    assert gate.core.ledger.violations == 0
    assert_nothing_left(gate)

"""The asyncio layer of admission: futures, the timer, and notifications of queued requests.

Tickets and leases have an owner, or are found. Many requests at once leak nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import MagicMock

import pytest

from orch_sidecar.admission.availability import OrderedBy
from orch_sidecar.admission.gate import Gate, Ticket
from orch_sidecar.admission.types import Lease, Queued
from orch_sidecar.api.refusal import Reason, Refusal
from tests.orch_sidecar.admission.examples import (
    STALE,
    bulk,
    class_rules,
    interactive,
    reason,
    reason_of,
    report,
    rules,
)
from tests.orch_sidecar.admission.gates import (
    CANCELLED,
    Asker,
    Outcome,
    admit,
    assert_nothing_left,
    cancelled,
    end,
    gate_of,
    lease_at_once,
    lease_of,
    opened,
    queued,
)
from tests.patience import HANG_S
from vllm_plugin.contracts.profile import BatchBounds


async def test_ids_name_the_instance_and_the_cost_and_differ() -> None:
    gate = gate_of(8)
    first, second = gate.ids.new(3), gate.ids.new(3)
    instance, secret, cost = first.split(".")
    assert (instance, cost) == (gate.instance, "3")
    assert len(bytes.fromhex(secret)) == 16
    assert first != second
    assert gate.instance != gate_of(8).instance


async def test_a_lease_has_the_id_of_its_ticket() -> None:
    ticket = opened(gate_of(8), interactive(3))
    assert await ticket.lease() == Lease(ticket.id, 3, "e1")


async def test_a_request_may_be_decided_before_it_is_waited_for() -> None:
    gate = gate_of(1)
    held = lease_at_once(gate)
    late = opened(gate)
    assert late.queued == Queued(0, None)
    end(gate, held)
    assert await late.lease() == Lease(late.id, 1, "e1")
    late.end()
    assert_nothing_left(gate)


async def test_only_completed_responses_are_learned_from() -> None:
    gate = gate_of(4)
    lengths = gate.controller.service_times.lengths
    for output_tokens, expected in ((None, 100), (60, 30)):
        lease = lease_at_once(gate, interactive(2, max_tokens=100))
        end(gate, lease, output_tokens)
        gate.controller.learn()
        assert lengths.expected(interactive().service_class, 100) == expected


# The timer


async def test_waiting_too_long_is_refused_by_the_timer() -> None:
    gate = gate_of(1, rules(class_rules(max_wait_s=0.01)))
    held = lease_at_once(gate)
    outcomes = await asyncio.gather(*(admit(gate, interactive()) for _ in range(2)))
    assert [reason_of(each) for each in outcomes] == [Reason.QUEUE_TIMEOUT] * 2
    end(gate, held)
    assert_nothing_left(gate)
    assert gate._timer is None


async def test_timer_serves_requests_after_the_one_that_it_was_set_for() -> None:
    """It is set for the head's deadline, and set anew when that head has long been served."""
    gate = gate_of(1, rules(class_rules(max_wait_s=0.02)))
    held = lease_at_once(gate)
    first = await queued(gate)
    end(gate, held)
    await lease_of(first)
    outcome = await asyncio.wait_for(admit(gate, interactive()), HANG_S)
    assert reason_of(outcome) is Reason.QUEUE_TIMEOUT


async def test_timer_serves_an_earlier_limit_that_came_later() -> None:
    gate = gate_of(1)
    lease_at_once(gate)
    await queued(gate)
    outcome = await asyncio.wait_for(admit(gate, bulk(max_wait_ms=10.0)), HANG_S)
    assert reason_of(outcome) is Reason.QUEUE_TIMEOUT


async def test_timer_ends_a_pause() -> None:
    gate = gate_of(1)
    loop = asyncio.get_running_loop()
    since = loop.time()
    held = opened(gate)
    held.end(served=False, rejection=30.0)
    again = gate.open(Asker(), interactive(), since)
    assert again.queued == Queued(0, None)
    assert gate.ledger.leased == 0
    assert isinstance(await asyncio.wait_for(again.lease(), HANG_S), Lease)
    assert loop.time() - since >= 0.03
    again.end()
    assert_nothing_left(gate)


async def test_request_that_is_requeued_too_late_is_refused() -> None:
    gate = gate_of(1)
    since = asyncio.get_running_loop().time() - 100
    again = gate.open(Asker(), interactive(), since)
    assert reason_of(await again.lease()) is Reason.QUEUE_TIMEOUT
    again.end()
    assert_nothing_left(gate)


async def test_timer_dispatches_a_bulk_request_that_was_delayed_enough() -> None:
    gate = gate_of(4, rules(aging_s=0.03))
    lease_at_once(gate, interactive())
    lease_at_once(gate, bulk(prompt_tokens=100))
    waiting = await queued(gate, bulk(prompt_tokens=100))
    assert reason(gate.controller.blocked_by) == "prefill"
    await lease_of(waiting)


# The engine and the operator


async def test_reloaded_rules_wake_requests_that_fit_now() -> None:
    narrow = class_rules(batch=BatchBounds(least=1, most=1))
    gate = gate_of(4, rules(narrow, narrow))
    lease_at_once(gate)
    waiting = await queued(gate)
    gate.reload(rules())
    await lease_of(waiting)


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_grant_and_cancellation_in_one_turn_give_the_lease_back(
    cancelled_first: bool,
) -> None:
    gate = gate_of(1)
    held = lease_at_once(gate)
    waiting = await queued(gate)
    if cancelled_first:
        waiting.cancel()
    end(gate, held)
    assert gate.ledger.leased == 1, "it was granted"
    if not cancelled_first:
        waiting.cancel()
    assert await cancelled(waiting)
    assert_nothing_left(gate)


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_refusal_and_cancellation_in_one_turn_leave_nothing(cancelled_first: bool) -> None:
    gate = gate_of(1)
    held = lease_at_once(gate)
    waiting = await queued(gate)
    if cancelled_first:
        waiting.cancel()
    gate.refuse_queued(CANCELLED)
    if not cancelled_first:
        waiting.cancel()
    assert await cancelled(waiting)
    end(gate, held)
    assert_nothing_left(gate)


async def test_a_queued_request_can_be_refused_from_outside() -> None:
    gate = gate_of(4)
    held = lease_at_once(gate, interactive(3))
    large = opened(gate, interactive(4))
    waiting = asyncio.ensure_future(large.lease())
    behind = await queued(gate)
    assert large.refuse(CANCELLED)
    assert not large.refuse(CANCELLED), "it no longer waits"
    assert await waiting is CANCELLED
    large.end()
    end(gate, await lease_of(behind))
    end(gate, held)
    assert_nothing_left(gate)


async def test_a_refusal_from_outside_may_come_before_the_wait() -> None:
    gate = gate_of(1)
    held = lease_at_once(gate)
    ticket = opened(gate)
    assert ticket.refuse(CANCELLED)
    assert await ticket.lease() is CANCELLED
    ticket.end()
    end(gate, held)
    assert_nothing_left(gate)


async def test_request_that_is_not_queued_cannot_be_refused_from_outside() -> None:
    gate = gate_of(1)
    assert not opened(gate).refuse(CANCELLED)
    assert gate.ledger.leased == 1


async def waiting(ticket: Ticket) -> asyncio.Task[Outcome]:
    """A task that waits for the ticket's lease."""
    assert ticket.queued is not None
    task = asyncio.ensure_future(ticket.lease())
    await asyncio.sleep(0)
    return task


async def test_a_lease_whose_owner_is_gone_is_found_and_closes() -> None:
    gate = gate_of(2)
    ticket = opened(gate)
    assert gate.reconcile() == []
    ticket.owner = None
    assert gate.reconcile() == [ticket.id]
    assert gate.ledger.closing() == [ticket.id]
    assert (gate.orphans, gate.reconcile()) == (1, [])
    gate.leases_ended([ticket.id])
    assert_nothing_left(gate)


async def test_a_ticket_whose_owner_is_gone_leaves_the_queue() -> None:
    gate = gate_of(1)
    held, ticket = opened(gate), opened(gate)
    task = await waiting(ticket)
    ticket.owner = None
    assert gate.reconcile() == []
    assert gate.controller.queues.depth == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    held.end()
    assert_nothing_left(gate)


async def test_what_an_error_leaves_of_an_arrival_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = gate_of(1)
    held = opened(gate)
    with monkeypatch.context() as patched:
        patched.setattr(gate.controller, "next_event", MagicMock(side_effect=ZeroDivisionError))
        with pytest.raises(ZeroDivisionError):
            opened(gate)
    assert gate.controller.queues.depth == 1
    gate.reconcile()
    held.end()
    assert_nothing_left(gate)


@pytest.mark.parametrize("granted", [True, False])
async def test_decision_that_was_not_delivered_reaches_the_waiting_request(granted: bool) -> None:
    gate = gate_of(1)
    held, ticket = opened(gate), opened(gate)
    task = await waiting(ticket)
    # As when something raises between the controller's decision and its delivery.
    now = asyncio.get_running_loop().time()
    if granted:
        gate.controller.release(held.id, now)
    else:
        gate.controller.leave(ticket.id, now)
    gate.reconcile()
    outcome = await asyncio.wait_for(task, HANG_S)
    if granted:
        assert isinstance(outcome, Lease)
    else:
        assert reason_of(outcome) is Reason.INTERNAL_ERROR


async def test_end_of_a_ticket_leaves_nothing_queued_or_leased() -> None:
    gate = gate_of(1)
    held, ticket = opened(gate), opened(gate)
    task = await waiting(ticket)
    ticket.end()
    assert gate.controller.queues.depth == 0
    held.end(ended=False)
    assert gate.ledger.closing() == [held.id]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_decision_without_a_waiting_request_does_not_break_a_report() -> None:
    gate = gate_of(1)
    held, ticket = opened(gate), opened(gate)
    await waiting(ticket)
    del gate.waiting[ticket.id]
    ticket.owner = None
    gate.leases_ended([held.id])
    assert gate.ledger.in_use() == {ticket.id}
    assert gate.reconcile() == [ticket.id]


async def test_a_timer_that_is_due_at_once_needs_no_time_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As uvloop's, whose clock moves between `time` and `call_at`: a handle that is no timer."""
    gate = gate_of(1, rules(class_rules(max_wait_s=0.05)))
    opened(gate)

    class Loop:
        def call_at(self, _: float, callback: Any) -> asyncio.Handle:
            return real.call_soon(callback)

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    real = asyncio.get_running_loop()
    monkeypatch.setattr(gate, "_loop", Loop())
    outcomes = await asyncio.gather(*(admit(gate, interactive()) for _ in range(3)))
    assert [reason_of(each) for each in outcomes] == [Reason.QUEUE_TIMEOUT] * 3


CLOSING = Refusal(Reason.DRAINING, "this sidecar is shutting down")


async def test_storm_of_arrivals_and_cancellations_leaks_nothing() -> None:
    gate = gate_of(4)

    async def one(number: int) -> None:
        kind = bulk if number % 3 else interactive
        lease = await admit(gate, kind(1 + number % 4))
        if isinstance(lease, Refusal):
            return
        try:
            for _ in range(lease.cost):
                await asyncio.sleep(0)
        finally:
            end(gate, lease)

    tasks = [asyncio.ensure_future(one(number)) for number in range(400)]
    turn = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        tasks[(turn * 7) % len(tasks)].cancel()
        turn += 1
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(task.cancelled() for task in tasks) > 10
    assert gate.ledger.violations == 0
    assert_nothing_left(gate)


def rooms_seen(gate: Gate) -> list[int]:
    """Free slots, at each change that the gate reports."""
    found: list[int] = []
    gate.on_change = lambda: found.append(gate.ledger.room)
    return found


async def test_parent_sidecar_is_notified_of_each_change() -> None:
    gate = gate_of(2)
    rooms = rooms_seen(gate)
    lease = lease_at_once(gate)
    assert rooms == [1]
    end(gate, lease)
    assert rooms == [1, 2]
    gate.engine_reports(report(3))
    gate.engine_unavailable(STALE)
    gate.drain(OrderedBy.OPERATOR)
    assert gate.controller.draining
    gate.resume()
    assert not gate.controller.draining
    assert rooms == [1, 2, 3, 3, 3, 3]


async def test_parent_sidecar_is_notified_of_changes_of_the_queue() -> None:
    gate = gate_of(1)
    held = lease_at_once(gate)
    rooms = rooms_seen(gate)
    waiting = await queued(gate)
    assert rooms == [0]
    end(gate, held)
    assert rooms == [0, 0], "it went to the next"
    lease = await waiting
    assert isinstance(lease, Lease)
    await queued(gate)
    gate.refuse_queued(CLOSING)
    assert len(rooms) == 4

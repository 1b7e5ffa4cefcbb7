"""Tickets and leases have an owner, or are found."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import MagicMock

import pytest

from orch_sidecar.admission.gate import Ticket
from orch_sidecar.admission.types import Lease
from orch_sidecar.api.refusal import Reason
from tests.orch_sidecar.admission.examples import class_rules, interactive, reason_of, rules
from tests.orch_sidecar.admission.gates import Outcome, admit, assert_nothing_left, gate_of, opened
from tests.patience import HANG_S


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

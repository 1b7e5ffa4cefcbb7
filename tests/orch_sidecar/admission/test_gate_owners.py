"""Tickets and leases have an owner, or are found."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.types import Lease, Queued
from orch_sidecar.api.refusal import Reason
from tests.orch_sidecar.admission.examples import class_rules, interactive, reason_of, rules
from tests.orch_sidecar.admission.gates import Outcome, admit, assert_nothing_left, gate_of
from tests.patience import HANG_S


@dataclass
class Asker:
    """A request, as far as the gate knows one."""

    ticket: str | None = None
    unseen: bool = False
    reclaimed: bool = False

    def reclaim(self) -> None:
        self.reclaimed = True


def opened(gate: Gate, cost: int = 1) -> tuple[Asker, str]:
    asker = Asker()
    return asker, gate.open(asker, cost)


async def waiting(gate: Gate, asker: Asker) -> asyncio.Task[Outcome]:
    """A task that waits under the asker's ticket."""
    assert asker.ticket is not None
    assert isinstance(gate.arrive(asker.ticket, interactive()), Queued)
    task = asyncio.ensure_future(gate.wait(asker.ticket))
    await asyncio.sleep(0)
    return task


async def test_a_lease_whose_owner_is_gone_is_found_and_closes() -> None:
    gate = gate_of(2)
    asker, ticket = opened(gate)
    gate.arrive(ticket, interactive())
    assert gate.reconcile() == []
    asker.ticket = None
    assert gate.reconcile() == [ticket]
    assert gate.closing() == [ticket]
    assert (gate.orphans, gate.reconcile()) == (1, [])
    gate.leases_ended([ticket])
    assert_nothing_left(gate)


async def test_a_ticket_whose_owner_is_gone_leaves_the_queue() -> None:
    gate = gate_of(1)
    _, held = opened(gate)
    gate.arrive(held, interactive())
    asker, _ = opened(gate)
    task = await waiting(gate, asker)
    asker.ticket = None
    assert gate.reconcile() == []
    assert gate.queue_depth == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    gate.release(held)
    assert_nothing_left(gate)


@pytest.mark.parametrize("granted", [True, False])
async def test_decision_that_was_not_delivered_reaches_the_waiting_request(granted: bool) -> None:
    gate = gate_of(1)
    _, held = opened(gate)
    gate.arrive(held, interactive())
    asker, ticket = opened(gate)
    task = await waiting(gate, asker)
    # As when something raises between the controller's decision and its delivery.
    now = asyncio.get_running_loop().time()
    if granted:
        gate._controller.release(held, now)
    else:
        gate._controller.leave(ticket, now)
    gate.reconcile()
    outcome = await asyncio.wait_for(task, HANG_S)
    if granted:
        assert isinstance(outcome, Lease)
    else:
        assert reason_of(outcome) is Reason.INTERNAL_ERROR


async def test_closing_a_ticket_ends_whatever_is_left_under_it() -> None:
    gate = gate_of(1)
    _, held = opened(gate)
    gate.arrive(held, interactive())
    asker, ticket = opened(gate)
    task = await waiting(gate, asker)
    gate.release(ticket, ended=False)
    assert gate.queue_depth == 0
    gate.release(held, ended=False)
    assert gate.closing() == [held]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_decision_without_a_waiting_request_does_not_break_a_report() -> None:
    gate = gate_of(1)
    _, held = opened(gate)
    gate.arrive(held, interactive())
    asker, ticket = opened(gate)
    await waiting(gate, asker)
    del gate._waiters[ticket]
    asker.ticket = None
    gate.leases_ended([held])
    assert gate.ledger.in_use() == {ticket}
    assert gate.reconcile() == [ticket]


async def test_a_timer_that_is_due_at_once_needs_no_time_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As uvloop's, whose clock moves between `time` and `call_at`: a handle that is no timer."""
    gate = gate_of(1, rules(class_rules(max_wait_s=0.05)))
    gate.arrive("held", interactive())

    class Loop:
        def call_at(self, _: float, callback: Any) -> asyncio.Handle:
            return real.call_soon(callback)

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    real = asyncio.get_running_loop()
    monkeypatch.setattr(gate, "_loop", Loop())
    outcomes = await asyncio.gather(*(admit(gate, interactive()) for _ in range(3)))
    assert [reason_of(each) for each in outcomes] == [Reason.QUEUE_TIMEOUT] * 3

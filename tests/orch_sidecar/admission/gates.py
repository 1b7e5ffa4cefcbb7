"""A gate and waiting requests, for tests."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.gate import Gate, Ticket
from orch_sidecar.admission.types import AdmissionRequest, Lease
from orch_sidecar.api.refusal import Reason, Refusal
from tests.orch_sidecar.admission.examples import (
    class_rules,
    interactive,
    report,
    rules,
)
from tests.patience import HANG_S
from vllm_plugin.contracts.profile import AdmissionRules

Outcome = Lease | Refusal
CANCELLED = Refusal(Reason.CANCELLED, "cancelled")


def gate_of(slots: int, of_rules: AdmissionRules | None = None) -> Gate:
    gate = Gate(
        AdmissionController(of_rules or rules(class_rules(queue_capacity=1000)), random.Random(1))
    )
    gate.engine_reports(report(slots))
    return gate


@dataclass
class Asker:
    """A request, as far as the gate knows one."""

    is_unseen: bool = False
    reclaimed: bool = False

    def reclaim(self) -> None:
        self.reclaimed = True


def opened(gate: Gate, request: AdmissionRequest | None = None) -> Ticket:
    """A ticket, whose owner is alive."""
    return gate.open(Asker(), request or interactive())


async def admit(gate: Gate, request: AdmissionRequest) -> Outcome:
    """Asks, and waits if it must; a lease is to be ended by `end`."""
    ticket, outcome = opened(gate, request), None
    try:
        outcome = await ticket.lease()
    finally:
        if not isinstance(outcome, Lease):
            ticket.end(served=False, sent=False)
    return outcome


def end(gate: Gate, lease: Lease, output_tokens: int | None = None, **more: bool) -> None:
    """Ends the ticket of a lease."""
    gate.tickets[lease.id].end(output_tokens, **more)


def lease_at_once(gate: Gate, request: AdmissionRequest | None = None) -> Lease:
    lease = gate.ledger.get(opened(gate, request).id)
    assert lease is not None
    return lease


async def lease_of(task: asyncio.Task[Outcome]) -> Lease:
    outcome = await asyncio.wait_for(task, HANG_S)
    assert isinstance(outcome, Lease), outcome
    return outcome


async def queued(gate: Gate, request: AdmissionRequest | None = None) -> asyncio.Task[Outcome]:
    """A task that waits in the queue."""
    depth = gate.controller.queues.depth
    task = asyncio.ensure_future(admit(gate, request or interactive()))
    await asyncio.sleep(0)
    assert gate.controller.queues.depth == depth + 1
    return task


def assert_nothing_left(gate: Gate) -> None:
    assert gate.ledger.leased == 0
    assert gate.ledger.lease_count == 0
    assert gate.controller.queues.depth == 0
    assert (gate.tickets, gate.waiting) == ({}, {})


async def cancelled(task: asyncio.Task[Outcome]) -> bool:
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    return isinstance(outcome, asyncio.CancelledError)

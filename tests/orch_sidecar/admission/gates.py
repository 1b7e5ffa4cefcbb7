"""A gate and waiting requests, for tests."""

from __future__ import annotations

import asyncio
import random

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.types import AdmissionRequest, Lease, Queued
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


async def admit(gate: Gate, request: AdmissionRequest) -> Outcome:
    """Asks, and waits if it must."""
    ticket = gate.ids.new(request.cost)
    outcome = gate.arrive(ticket, request)
    return await gate.wait(ticket) if isinstance(outcome, Queued) else outcome


def lease_at_once(gate: Gate, request: AdmissionRequest | None = None) -> Lease:
    request = request or interactive()
    outcome = gate.arrive(gate.ids.new(request.cost), request)
    assert isinstance(outcome, Lease), outcome
    return outcome


async def lease_of(task: asyncio.Task[Outcome]) -> Lease:
    outcome = await asyncio.wait_for(task, HANG_S)
    assert isinstance(outcome, Lease), outcome
    return outcome


async def queued(gate: Gate, request: AdmissionRequest | None = None) -> asyncio.Task[Outcome]:
    """A task that waits in the queue."""
    depth = gate.queue_depth
    task = asyncio.ensure_future(admit(gate, request or interactive()))
    await asyncio.sleep(0)
    assert gate.queue_depth == depth + 1
    return task


def assert_nothing_left(gate: Gate) -> None:
    assert gate.status().leased == 0
    assert gate.status().leases == 0
    assert gate.queue_depth == 0
    assert gate._waiters == {}
    assert gate._decided == {}


async def cancelled(task: asyncio.Task[Outcome]) -> bool:
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    return isinstance(outcome, asyncio.CancelledError)

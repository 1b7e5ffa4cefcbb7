"""The gate under many requests at once, and its notifications."""

from __future__ import annotations

import asyncio

from orch_sidecar.admission.availability import OrderedBy
from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.types import Lease
from orch_sidecar.api.refusal import Reason, Refusal
from tests.orch_sidecar.admission.examples import STALE, bulk, interactive, report
from tests.orch_sidecar.admission.gates import (
    admit,
    assert_nothing_left,
    end,
    gate_of,
    lease_at_once,
    queued,
)

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

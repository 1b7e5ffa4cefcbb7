"""The asyncio shell: a wait that ends early, at every moment."""

from __future__ import annotations

import asyncio

import pytest

from tests.orch_sidecar.admission.examples import (
    interactive,
)
from tests.orch_sidecar.admission.gates import (
    CANCELLED,
    assert_nothing_left,
    cancelled,
    end,
    gate_of,
    lease_at_once,
    lease_of,
    opened,
    queued,
)


async def test_cancellation_while_queued_leaves_the_queue() -> None:
    gate = gate_of(1)
    held = lease_at_once(gate)
    waiting, behind = await queued(gate), await queued(gate)
    waiting.cancel()
    assert await cancelled(waiting)
    assert gate.controller.queue_depth == 1
    end(gate, held)
    end(gate, await lease_of(behind))
    assert_nothing_left(gate)


async def test_cancellation_of_the_head_admits_a_smaller_one_behind_it() -> None:
    gate = gate_of(4)
    held = lease_at_once(gate, interactive(3))
    large, small = await queued(gate, interactive(4)), await queued(gate)
    large.cancel()
    lease = await lease_of(small)
    end(gate, held)
    end(gate, lease)
    assert await cancelled(large)
    assert_nothing_left(gate)


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
    assert gate.status().leased == 1, "it was granted"
    if not cancelled_first:
        waiting.cancel()
    assert await cancelled(waiting)
    assert_nothing_left(gate)


async def test_lease_given_back_by_a_cancelled_request_goes_to_the_next() -> None:
    gate = gate_of(1)
    held = lease_at_once(gate)
    first, second = await queued(gate), await queued(gate)
    end(gate, held)
    first.cancel()
    end(gate, await lease_of(second))
    assert await cancelled(first)
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
    assert gate.status().leased == 1

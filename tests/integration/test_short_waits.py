"""Waits that end at once, and faults of the sidecar's own, cost no slot."""

from __future__ import annotations

import logging

import pytest

from tests.integration.impatient import faults, short_waits, short_work
from tests.integration.running import Running, Start, eventually, pools
from tests.integration.scripted_engine import Engine, ScriptedEngine

SECONDS = 0.8
ENOUGH = 20  # faults
POOLS = [("cloud", 8), ("home", 1)]


async def front_of(
    profile: str, slots: int, another: Engine, start: Start
) -> tuple[Running, ScriptedEngine]:
    """A sidecar in front of an engine with a single pool."""
    engine = await another(slots=slots, profile=profile)
    engine.answer = short_work
    return await start(engine_url=engine.url, profile=profile), engine


@pytest.mark.parametrize(("profile", "slots"), POOLS)
async def test_clients_that_wait_for_milliseconds_leak_no_slot(
    profile: str, slots: int, another: Engine, start: Start
) -> None:
    running, engine = await front_of(profile, slots, another, start)
    statuses = await short_waits(running.port, 48, SECONDS)
    assert statuses[200]
    assert set(statuses) <= {200, 429}
    await running.idle()
    assert engine.present == 0
    assert running.pool.gate.orphans == 0


@pytest.mark.parametrize(("profile", "slots"), POOLS)
async def test_faults_between_core_gate_and_follower_leak_no_slot(
    profile: str, slots: int, another: Engine, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    running, engine = await front_of(profile, slots, another, start)
    with caplog.at_level(logging.CRITICAL), faults(running, 0.02, seed=slots) as raised:
        statuses = await short_waits(running.port, 24, SECONDS)
        while raised.total() < ENOUGH or not statuses[200]:  # on a slow machine it takes longer
            statuses += await short_waits(running.port, 24, SECONDS)
    await running.ready()
    await running.idle()
    gate = running.pool.gate
    await eventually(lambda: not (gate.tickets or gate.waiting))
    assert engine.present == 0
    healthy = await short_waits(running.port, 4, 0.2)
    assert set(healthy) <= {200, 429}
    assert healthy[200]


async def test_a_fault_at_one_pool_leaks_no_slot_at_another(
    another: Engine, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await another(), await another()
    a.answer = b.answer = short_work
    running = await start(**pools(a=a, b=b))
    with caplog.at_level(logging.CRITICAL), faults(running, 0.02, seed=1):
        await short_waits(running.port, 24, SECONDS)
    await running.ready()
    await running.idle()
    assert a.present == b.present == 0
    assert not running.sidecar.failed

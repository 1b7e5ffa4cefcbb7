"""Several sidecars in front of one engine, when the network loses one and closes no connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.benchmarks.sidecars.cut import Proxy
from tests.integration.backlogs import claim, instance
from tests.integration.held import Held, started
from tests.integration.running import Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from vllm_plugin.contracts.lease_protocol import Claim


@pytest.fixture
async def proxy(engine: ScriptedEngine) -> AsyncIterator[Proxy]:
    """A network between a sidecar and the engine, which stops forwarding and closes nothing."""
    made = Proxy(engine.port)
    await made.start()
    yield made
    made.flows.set()
    await made.stop()
    await asyncio.sleep(0.01)  # in which its connections close


async def test_sidecar_that_is_lost_without_an_end_of_its_stream_stops_delaying_the_others(
    engine: ScriptedEngine, start: Start, held: Held, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_plugin.contracts.slot_claims.CLAIM_S", 2.0)
    lost, other = await start(engine_url=f"http://127.0.0.1:{proxy.port}"), await start()
    busy = await started(other, seed=0, n=4)
    await eventually(lambda: held.waiting)
    await started(lost, seed=1, n=2)
    await eventually(lambda: claim(engine, lost) == Claim(2, urgent=True))
    await eventually(lambda: other.pool.gate.offers.contended)
    proxy.flows.clear()
    state = engine.engine_state
    await eventually(lambda: claim(engine, lost) is None and not state.claims.has_claims)
    assert state.claims.reads(instance(lost)), "its stream is still open"
    await eventually(lambda: not other.pool.gate.offers.contended)
    held.release()
    assert (await busy.response()).status == 200
    again = await started(other, seed=2, n=4)
    await eventually(lambda: held.waiting)
    held.release()
    assert (await again.response()).status == 200

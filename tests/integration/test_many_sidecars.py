"""Several sidecars in front of one engine: it keeps the count, and each sidecar gets its share."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.integration.backlogs import (
    Numbers,
    Recording,
    answered,
    backlog,
    claim,
)
from tests.integration.client import Client
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually, total
from tests.integration.scripted_engine import ScriptedEngine
from vllm_plugin.contracts.lease_protocol import Claim


async def knowing(start: Start, count: int, **settings: Any) -> list[Running]:
    """So many sidecars, each of which knows of the others."""
    sidecars = [await start(**settings) for _ in range(count)]
    for each in sidecars:
        await eventually(lambda each=each: each.pool.gate.offers.sidecars == count)  # type: ignore[misc]
    return sidecars


@pytest.fixture
def recording(engine: ScriptedEngine) -> Recording:
    return Recording(engine)


async def test_sidecar_alone_is_never_rejected_and_claims_nothing(
    engine: ScriptedEngine, start: Start, recording: Recording
) -> None:
    sidecar, numbers = await start(), Numbers()
    dice = random.Random(7)
    leaving = await backlog(sidecar, numbers.next(10), n=2)
    clients: dict[int, Client] = {}
    for seed in numbers.next(100):
        clients |= await backlog(sidecar, [seed], n=dice.choice((1, 1, 2, 4)))
    for client in leaving.values():
        await client.close()
    await answered(clients)
    assert engine.engine_state.rejected_for_slots == 0
    assert engine.claimed.total() == 0
    assert engine.peak == engine.slots
    metrics = await sidecar.metrics()
    assert total(metrics, "orch_engine_rejections_total", pool="cloud") == 0
    assert metrics['orch_engine_sidecars{pool="cloud"}'] == 1


@pytest.mark.parametrize(
    ("size", "unread"),
    [(100, False), (100_000, False), (3_000_000, True)],
    ids=["small", "large", "large, rejected before it was read"],
)
async def test_rejected_request_is_sent_again_as_it_was_when_its_slots_are_offered(
    engine: ScriptedEngine, start: Start, held: Held, size: int, unread: bool
) -> None:
    """The state stream is late: the second sidecar takes slots for free that are not."""
    engine.faults.rejects_unread = unread
    first, second = await knowing(start, 2)
    engine.faults.mute = True
    busy = await started(first, seed=0, n=4)
    await eventually(lambda: held.waiting)
    text = [{"role": "user", "content": "x" * size}]
    late = await started(second, seed=1, messages=text)
    await eventually(lambda: engine.engine_state.rejected_for_slots == 1)
    assert claim(engine, second) == Claim(1, urgent=True)
    await eventually(lambda: second.queued == 1)
    engine.faults.mute = False
    held.release()
    await eventually(lambda: held.waiting)
    held.release()
    assert (await busy.response()).status == 200
    assert (await late.response()).json() == {"seed": 1}
    sent = [request for request in engine.generating if request.json()["seed"] == 1]
    assert len(sent) == 1 if unread else 2, "a body that was not read did not come"
    assert {len(request.json()["messages"][0]["content"]) for request in sent} == {size}
    assert len({request.lease for request in sent}) == len(sent), "a lease is sent once"
    assert second.pool.gate.offers.rejections == 1
    await eventually(lambda: not engine.engine_state.claims.has_claims)

"""Several sidecars in front of one engine: it keeps the count, and each sidecar gets its share.

Several sidecars in front of one engine, when sidecars, streams, claims or the engine fail.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.benchmarks.sidecars.cut import Proxy
from tests.integration import scripted_engine
from tests.integration.backlogs import (
    Numbers,
    Recording,
    answered,
    backlog,
    break_streams,
    claim,
    instance,
    outcomes,
)
from tests.integration.client import Client
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually, total
from tests.integration.scripted_engine import ScriptedEngine
from vllm_plugin.contracts.lease_protocol import Claim, parse_lease
from vllm_plugin.state.engine_state import EngineState
from vllm_plugin.state.leases import Rejected


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


# Fields of the engine's state that came with API versions 1.1 and 1.2.
_NEW = (
    "api_version", "unleased", "sidecars", "contended", "claim", "no_slot_total",
    "claimed", "waits", "foreign_interactive",
)  # fmt: skip


async def queued(
    recording: Recording, sidecars: list[Running], numbers: Numbers, each_sends: int
) -> dict[int, Client]:
    """A backlog at each, of which some is in the engine, where it stays until `flows` is set."""
    recording.flows.clear()
    clients: dict[int, Client] = {}
    for each in sidecars:
        clients |= await backlog(each, numbers.next(each_sends))
    await eventually(lambda: all(each.queued for each in sidecars))
    return clients


async def calm(engine: ScriptedEngine, *sidecars: Running) -> None:
    """Returns when nothing is left anywhere."""
    for each in sidecars:
        await each.idle()
        await eventually(lambda each=each: each.ledger.foreign == 0)  # type: ignore[misc]
    await eventually(lambda: not engine.present)
    await eventually(lambda: not engine.engine_state.claims.has_claims)


@pytest.mark.parametrize("stops", [0, 1], ids=["that runs requests", "that waits"])
async def test_sidecar_that_stops_leaves_its_slots_and_its_place_to_the_others(
    engine: ScriptedEngine, start: Start, recording: Recording, stops: int
) -> None:
    sidecars, numbers = [await start() for _ in range(3)], Numbers()
    backlogs = [await queued(recording, sidecars[:1], numbers, 20)]
    backlogs += [await backlog(each, numbers.next(20)) for each in sidecars[1:]]
    await eventually(lambda: all(claim(engine, each) for each in sidecars))
    await sidecars[stops].stop()
    await eventually(lambda: claim(engine, sidecars[stops]) is None)
    recording.flows.set()
    staying = [each for each in range(3) if each != stops]
    for each in staying:
        await answered(backlogs[each])
    assert set(await outcomes(backlogs[stops])) <= {0, 200, 502, 503}
    assert set(recording.answered.values()) == {1}
    await calm(engine, *(sidecars[each] for each in staying))
    assert engine.engine_state.claims.sidecars == 2


async def test_engine_restart_ends_what_runs_and_answers_all_that_waits(
    engine: ScriptedEngine, start: Start, recording: Recording
) -> None:
    sidecars, numbers = [await start() for _ in range(3)], Numbers()
    clients = await queued(recording, sidecars, numbers, 12)
    await eventually(lambda: all(claim(engine, each) for each in sidecars))
    await eventually(lambda: engine.present == engine.slots)
    await engine.restart()
    recording.flows.set()
    statuses = await outcomes(clients)
    assert statuses == {502: engine.slots, 200: 36 - engine.slots}
    assert set(recording.answered.values()) == {1}
    await calm(engine, *sidecars)


async def test_broken_streams_lose_no_request_and_no_slot(
    engine: ScriptedEngine, start: Start, recording: Recording
) -> None:
    """With its stream a claim ends; it comes back with the next stream."""
    sidecars, numbers = [await start() for _ in range(3)], Numbers()
    clients = await queued(recording, sidecars, numbers, 80)
    recording.flows.set()
    for _ in range(4):
        before = sum(recording.answered.values())
        assert break_streams(engine) == 3
        await eventually(lambda: engine.streams == 0)
        await eventually(lambda: engine.streams == 3)
        await eventually(lambda before=before: sum(recording.answered.values()) > before)  # type: ignore[misc]
    await answered(clients)
    assert set(recording.answered.values()) == {1}
    await calm(engine, *sidecars)


class FormerState(EngineState):
    """The state of an engine of API version 1.0: it books what comes, and offers nothing."""

    def enter(
        self,
        lease: str | None,
        traceparent: str | None = None,
        *,
        urgent: bool = True,
        adapter: str | None = None,
    ) -> int | Rejected:
        parsed = parse_lease(lease) if lease else None
        if parsed is not None and self.leases.is_used(parsed):
            return Rejected.SPENT
        number = self.leases.enter(parsed)
        self._subscribers.change()
        return number

    def change_fields(self, instance: str | None) -> dict[str, Any]:
        return _without_new(super().change_fields(instance))

    def claim_fields(self, instance: str | None) -> dict[str, Any]:
        return {}

    def document(self, instance: str | None, now_s: float | None = None) -> dict[str, Any]:
        return _without_new(super().document(instance, now_s))


def _without_new(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _NEW}


async def test_engine_of_api_version_1_0_is_served_as_before(
    engine: ScriptedEngine,
    start: Start,
    recording: Recording,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It knows neither claims nor offers, and rejects nothing."""
    monkeypatch.setattr(scripted_engine, "EngineState", FormerState)
    await engine.restart()
    engine.faults.claim_status = 404
    sidecar, numbers = await start(), Numbers()
    clients = await queued(recording, [sidecar], numbers, 60)
    clients |= await backlog(sidecar, numbers.next(5), n=4)
    leaving = await backlog(sidecar, numbers.next(5))
    for client in leaving.values():
        await client.close()
    recording.flows.set()
    await answered(clients)
    assert engine.peak == engine.slots
    assert engine.claimed.total() == 0
    assert sidecar.pool.watcher.document is not None
    assert not set(_NEW) & set(sidecar.pool.watcher.document)
    await sidecar.idle()


async def test_second_sidecar_at_an_engine_of_api_version_1_0_waits_for_slots_that_it_sees(
    engine: ScriptedEngine, start: Start, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an engine keeps no count: each sidecar keeps out of the slots that others report."""
    monkeypatch.setattr(scripted_engine, "EngineState", FormerState)
    await engine.restart()
    first, second = await start(), await start()
    busy = await started(first, seed=0, n=4)
    await eventually(lambda: second.ledger.foreign == 4)
    waiting = await started(second, seed=1)
    await eventually(lambda: second.queued == 1)
    await asyncio.sleep(0.05)
    assert len(held.waiting) == 1
    held.release()
    await eventually(lambda: held.waiting)
    held.release()
    assert [(await each.response()).status for each in (busy, waiting)] == [200, 200]
    assert engine.claimed.total() == 0


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

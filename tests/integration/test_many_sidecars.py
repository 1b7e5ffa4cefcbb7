"""Several sidecars in front of one engine: it keeps the count, and each sidecar gets its share."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.backlogs import (
    BULK,
    Numbers,
    Recording,
    answered,
    backlog,
    claim,
    instance,
)
from tests.integration.client import CHAT, Client
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually, total
from tests.integration.scripted_engine import ScriptedEngine
from vllm_plugin.contracts import profile as profiles
from vllm_plugin.contracts.lease_protocol import Claim


async def knowing(start: Start, count: int, **settings: Any) -> list[Running]:
    """So many sidecars, each of which knows of the others."""
    sidecars = [await start(**settings) for _ in range(count)]
    for each in sidecars:
        await eventually(lambda each=each: each.pool.gate.offers.sidecars == count)  # type: ignore[misc]
    return sidecars


async def all_at_once(recording: Recording, *backlogs: tuple[Running, range, int]) -> None:
    """Queues these backlogs (sidecar, seeds, cost of each), then lets them be answered."""
    recording.flows.clear()
    clients: dict[int, Client] = {}
    for sidecar, seeds, cost in backlogs:
        clients |= await backlog(sidecar, seeds, n=cost)
    sidecars = [sidecar for sidecar, _, _ in backlogs]
    await recording.came(len(clients), *sidecars)
    assert {*recording.entered} <= {instance(sidecars[0])}, "the first one's have all slots"
    recording.flows.set()
    await answered(clients)
    assert set(recording.answered.values()) == {1}, "each request was answered once"


@pytest.fixture
def recording(engine: ScriptedEngine) -> Recording:
    return Recording(engine)


async def test_equal_backlogs_get_equal_shares_of_the_slots(
    engine: ScriptedEngine, start: Start, recording: Recording
) -> None:
    count, each_sends, numbers = 3, 30, Numbers()
    sidecars = await knowing(start, count)
    recording.settled = recording.full(*sidecars)
    await all_at_once(recording, *((each, numbers.next(each_sends), 1) for each in sidecars))
    assert engine.peak == engine.slots
    # As long as all have requests; the first one had all slots in the beginning.
    begun = recording.entered[: count * each_sends // 2]
    shares = [begun.count(instance(each)) for each in sidecars]
    assert max(shares) - min(shares) <= 2 * engine.slots, shares
    for each in sidecars:
        await each.idle()
        await eventually(lambda each=each: each.ledger.foreign == 0)  # type: ignore[misc]
    assert not engine.engine_state.claims.has_claims


async def test_never_over_the_slots_with_random_costs_and_clients_that_leave(
    engine: ScriptedEngine, start: Start, recording: Recording
) -> None:
    sidecars, numbers = await knowing(start, 4), Numbers()
    statuses: list[int] = []

    async def user(number: int) -> None:
        dice = random.Random(number)
        for _ in range(10):
            client = await sidecars[number % 4].client()
            [seed] = numbers.next(1)
            headers = BULK if dice.random() < 0.3 else ()
            client.start(CHAT, headers, stream=False, seed=seed, n=dice.choice((1, 1, 2, 4)))
            if dice.random() < 0.3:
                await asyncio.sleep(dice.random() * 0.02)
                await client.close()
            else:
                statuses.append((await client.response()).status)

    await asyncio.gather(*(user(number) for number in range(24)))
    assert set(statuses) == {200}
    assert set(recording.answered.values()) == {1}
    assert engine.peak == engine.slots
    for each in sidecars:
        await each.idle()
    await eventually(lambda: not engine.present)
    await eventually(lambda: not engine.engine_state.claims.has_claims)


async def test_requests_for_all_slots_get_their_turn_beside_small_ones(
    engine: ScriptedEngine, start: Start, recording: Recording
) -> None:
    (small, large), numbers = await knowing(start, 2), Numbers()
    await all_at_once(recording, (small, numbers.next(60), 1), (large, numbers.next(8), 4))
    last_large = max(i for i, each in enumerate(recording.entered) if each == instance(large))
    assert last_large < 50, "a claim is older than those of later requests, whatever they cost"
    assert engine.peak == engine.slots


async def test_small_requests_get_their_turn_beside_those_for_all_slots(
    engine: ScriptedEngine, start: Start, recording: Recording
) -> None:
    (small, large), numbers = await knowing(start, 2), Numbers()
    await all_at_once(recording, (large, numbers.next(30), 4), (small, numbers.next(8), 1))
    last_small = max(i for i, each in enumerate(recording.entered) if each == instance(small))
    assert last_small < 30
    assert engine.peak == engine.slots


@pytest.fixture
def without_bulk_share(tmp_path: Path) -> Path:
    """The profile `cloud`, in which no bulk request is owed slots."""
    profile = yaml.safe_load((profiles.directory() / "cloud.yaml").read_text())
    profile["admission"]["bulk_share"] = 0.0
    path = tmp_path / "cloud.yaml"
    path.write_text(yaml.safe_dump(profile))
    return path


async def test_interactive_request_goes_before_the_bulk_work_of_others(
    engine: ScriptedEngine, start: Start, held: Held, without_bulk_share: Path
) -> None:
    sidecars = await knowing(start, 4, profile=str(without_bulk_share))
    clients = [await started(sidecars[0], seed=0, n=4)]
    await eventually(lambda: len(held.waiting) == 1)
    for seed, each in enumerate(sidecars[:3], 1):
        clients.append(await started(each, seed=seed, headers=BULK, n=4))
        await eventually(lambda each=each: claim(engine, each) == Claim(4, urgent=False))  # type: ignore[misc]
    clients.append(await started(sidecars[3], seed=4))
    await eventually(lambda: claim(engine, sidecars[3]) == Claim(1, urgent=True))
    for _ in clients:
        await eventually(lambda: held.waiting)
        held.release()
    assert [(await each.response()).status for each in clients] == [200] * 5
    came = [request.json()["seed"] for request in engine.generating]
    admitted = list(dict.fromkeys(reversed(came)))[::-1]  # a rejected one came again
    assert admitted == [0, 4, 2, 3, 1], "the interactive one, then those that had no slots yet"


async def test_idle_sidecar_does_not_slow_the_other_down(
    engine: ScriptedEngine, start: Start, recording: Recording
) -> None:
    (busy, _), numbers = await knowing(start, 2), Numbers()
    await all_at_once(recording, (busy, numbers.next(60), 1))
    assert engine.engine_state.rejected_for_slots == 0
    assert busy.pool.gate.offers.rejections == 0
    assert engine.peak == engine.slots


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


async def test_rejected_request_waits_within_its_time_limit(
    engine: ScriptedEngine, start: Start, held: Held
) -> None:
    first, second = await knowing(start, 2)
    engine.faults.mute = True
    busy = await started(first, seed=0, n=4)
    await eventually(lambda: held.waiting)
    late = await started(second, seed=1, headers=[("X-Orch-Max-Wait-Ms", "200")])
    await eventually(lambda: engine.engine_state.rejected_for_slots == 1)
    engine.faults.mute = False
    response = await late.response()
    assert (response.status, response.error["code"]) == (429, "ADMISSION_TIMEOUT")
    held.release()
    assert (await busy.response()).status == 200
    await eventually(lambda: not engine.engine_state.claims.has_claims)

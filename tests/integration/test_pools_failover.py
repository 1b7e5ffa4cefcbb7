"""An engine that fails a request before its first byte: another pool makes it good."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.client import CHAT, COMPLETIONS, MESSAGES
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import Engine, Script, ScriptedEngine
from tests.integration.scripts import closes, resets
from tests.integration.tiers import tier
from tests.integration.wire import Answer


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, MESSAGES])
@pytest.mark.parametrize("end", [closes, resets])
async def test_engine_lost_before_the_first_byte_is_made_good_by_another(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine, path: str, end: Any
) -> None:
    engine.scripts.append(end)
    response = await (await pair.client()).post(path, stream=True)
    assert response.status == 200
    assert b"error" not in response.body
    assert (len(engine.generating), len(b.generating)) == (1, 1)
    assert engine.generating[0].lease != b.generating[0].lease
    await pair.idle()
    for pool in pair.sidecar.pools:
        assert pool.ledger.lease_count == 0


async def four(start: Start, another: Engine, end: Script) -> tuple[Running, list[ScriptedEngine]]:
    """A sidecar in front of four engines that end like that."""
    engines = [await another() for _ in range(4)]
    for each in engines:
        each.answer = end
    named = dict(zip("abcd", engines, strict=True))
    return await all_ready(await start(**pools(**named))), engines


def sent_to(engines: list[ScriptedEngine]) -> int:
    return sum(len(each.generating) for each in engines)


@pytest.mark.parametrize("more", [{}, {"temperature": 0}])  # for its client, and shared
@pytest.mark.parametrize("end", [closes, resets])
async def test_request_that_kills_engines_gets_to_two_of_them_and_never_to_a_third(
    start: Start, another: Engine, end: Script, more: dict[str, Any]
) -> None:
    running, engines = await four(start, another, end)
    response = await (await running.client()).post(**more)
    assert (response.status, response.error["code"]) == (502, "engine_failed")
    assert sent_to(engines) == 2
    await running.idle()


async def test_request_that_kills_engines_is_not_given_to_pools_that_share_nothing(
    start: Start, another: Engine, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    home = await another(profile="home", slots=1)
    engines, all_sent = [engine, b, home], asyncio.Event()

    async def closes_then(answer: Answer) -> None:
        await all_sent.wait()
        answer.close()

    for each in engines:
        each.answer = closes_then
    running = await all_ready(await start(**pools(a=engine, b=b, h=home)))
    clients = [await started(running, temperature=0) for _ in range(3)]
    await eventually(lambda: len(running.sidecar.watchdog.responses()) == 3)
    all_sent.set()
    for client in clients:
        assert (await client.response()).error["code"] == "engine_failed"
    assert (sent_to([engine, b]), home.generating) == (2, [])


async def test_sidecar_above_asks_another_pool_and_the_one_below_does_not(
    start: Start, another: Engine
) -> None:
    """Each asking one other would be four engines for two levels."""
    running, engines = await four(start, another, closes)
    lease = f"{'1' * 16}.{'2' * 32}.1"
    response = await (await running.client()).post(CHAT, [("X-Orch-Lease", lease)])
    assert (response.status, response.error["code"]) == (502, "engine_failed")
    assert sent_to(engines) == 1


async def test_lost_engine_below_is_not_tried_again_from_above(
    start: Start, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    engine.answer = b.answer = closes
    lowers = [await start(), await start(engine_url=b.url)]
    parent_leases = await start(pools=[tier(lower, f"l{at}") for at, lower in enumerate(lowers)])
    await all_ready(parent_leases)
    response = await (await parent_leases.client()).post()
    assert (response.status, response.error["code"]) == (502, "engine_failed")
    assert sent_to([engine, b]) == 1
    for running in (parent_leases, *lowers):
        await running.idle()


async def test_queue_of_a_pool_that_dies_moves_to_another(
    pair: Running, engine: ScriptedEngine, b: ScriptedEngine, held: Held
) -> None:
    held_b = Held()
    b.answer = held_b
    to_a, to_b = [("X-Orch-Pool", "a; prefer")], [("X-Orch-Pool", "b")]
    busy = [await started(pair, headers=to_a, n=4), await started(pair, headers=to_b, n=4)]
    await eventually(lambda: held.waiting and held_b.waiting)
    queued = []
    for seed in (1, 2, 3):
        queued.append(await started(pair, headers=to_a, seed=seed, n=4))
        await eventually(lambda seed=seed: pair.queued == seed)  # type: ignore[misc]
    assert pair.pool.queues.depth == 3
    pinned = await started(pair, headers=[("X-Orch-Pool", "a")], seed=9)
    await eventually(lambda: pair.queued == 4)
    await engine.stop()
    held.waiting.clear()
    assert (await pinned.response()).status == 503
    # What ran in it had not answered yet, so it is made good as well.
    await eventually(lambda: pair.sidecar.pools["b"].queues.depth == 4)
    for _ in range(5):
        await eventually(lambda: held_b.waiting)
        held_b.release()
    for client, seed in zip(queued, (1, 2, 3), strict=True):
        assert (await client.response()).json() == {"seed": seed}
    for client in busy:
        assert (await client.response()).status == 200
    moved = [seed for request in b.generating if (seed := request.json().get("seed"))]
    assert moved == [1, 2, 3]
    ledgers = [pool.ledger for pool in pair.sidecar.pools]
    await eventually(lambda: not ledgers[1].leased)
    assert ledgers[0].leased == 4  # until that engine, or the next one, reports that it has ended
    await engine.start()
    await pair.idle()

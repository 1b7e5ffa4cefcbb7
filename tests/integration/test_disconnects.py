"""Clients that leave, queued or served: their slots come back, and nothing of them stays."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp.web import BaseRequest

from orch_sidecar.wire.client_connection import ClientRequest
from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, COMPLETIONS, Client, body_of
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import endless
from tests.integration.wire import Answer


async def leave(client: Client, *, reset: bool) -> None:
    if reset:
        client.reset()
    await client.close()


async def test_client_that_leaves_the_queue_frees_its_place_and_asks_nothing_of_the_engine(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    busy = await started(sidecar, n=4)
    await eventually(lambda: held.waiting)
    gone = await started(sidecar, seed=1, n=4)
    await eventually(lambda: sidecar.queued == 1)
    stays = await started(sidecar, seed=2)
    await eventually(lambda: sidecar.queued == 2)
    await gone.close()
    await eventually(lambda: sidecar.queued == 1)
    held.release()
    await busy.response()
    await eventually(lambda: held.waiting)
    held.release()
    assert (await stays.response()).json() == {"seed": 2}
    assert [request.json().get("seed") for request in engine.generating] == [None, 2]
    assert engine.revoked == []


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("streams", [False, True])
async def test_client_that_leaves_ends_the_engines_request_and_its_lease_waits_for_that_end(
    engine: ScriptedEngine, sidecar: Running, streams: bool, reset: bool
) -> None:
    """Before the first byte, and in the middle of a stream."""
    hold = Held()
    engine.scripts.append(endless if streams else hold)
    engine.faults.holds_aborted = asyncio.Event()
    client = await sidecar.client()
    client.start(CHAT, n=4)
    if streams:
        await client.seen(b"data: more\n\n")
    else:
        await eventually(lambda: hold.waiting)
    waiting = await started(sidecar)
    await eventually(lambda: sidecar.queued == 1)
    await leave(client, reset=reset)
    await eventually(sidecar.ledger.closing)
    assert engine.present == 4  # the engine still has it
    await asyncio.sleep(0.05)
    assert (sidecar.ledger.leased, sidecar.queued) == (4, 1)
    metrics = await sidecar.metrics()
    assert metrics['orch_leases_closing{pool="cloud"}'] == 1
    engine.faults.holds_aborted.set()
    assert (await waiting.response()).status == 200
    await sidecar.idle()
    assert engine.revoked == []  # the stream's word was enough


@pytest.mark.parametrize(
    ("target", "missing"),
    [(CHAT, 0), (CHAT, 5), ("/unknown", 5)],
    ids=["generating", "sending its body", "refused"],
)
async def test_nothing_of_a_request_is_left_to_the_garbage_collector(
    sidecar: Running, held: Held, target: str, missing: int
) -> None:
    """Its body may have megabytes, and the collector seldom runs."""
    body = json.dumps(body_of(CHAT)).encode()
    client = await sidecar.client()
    gc.collect()
    gc.disable()
    try:
        client.send_request("POST", target, headers=[("Content-Length", str(len(body)))])
        client.send(body[: len(body) - missing])
        await eventually(lambda: any(each._request_count for each in sidecar.connections))
        await eventually(lambda: held.waiting or missing)
        await asyncio.sleep(0.02)  # it waits, for a body that does not come or for the engine
        await leave(client, reset=True)
        await eventually(lambda: not sidecar.connections)
        both = BaseRequest, ClientRequest
        await eventually(lambda: not any(isinstance(each, both) for each in gc.get_objects()))
    finally:
        gc.enable()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a client asks, how long it waits (None: for all of the answer), and how it leaves."""

    path: str
    body: dict[str, Any]
    stream: bool
    patience_s: float | None
    resets: bool

    @classmethod
    def drawn(cls, dice: random.Random) -> Plan:
        path, body = (CHAT, {"n": dice.choice((1, 1, 2, 4))})
        if dice.random() >= 0.7:
            path, body = COMPLETIONS, {}
        patience_s = dice.choice((0.0, 0.002, 0.01, 0.05, None, None))
        return cls(path, body, dice.random() < 0.6, patience_s, dice.random() < 0.5)


async def test_many_random_disconnects_leak_nothing_and_never_overfill_the_engine(
    engine: ScriptedEngine, start: Start
) -> None:
    dice = random.Random(11)
    # The clients' part is drawn before, so that the machine does not change it: who stays gets its
    # answer, and who leaves at once gets none. What the others get is left to the machine.
    plans = [Plan.drawn(dice) for _ in range(400)]
    # The pools of connections and whatever is made lazily exist before the counting.
    running = await start(queue_capacity=1000)
    await (await running.client()).post()
    await running.clients.pop().close()
    tasks_before, sockets_before = len(asyncio.all_tasks()), _sockets()

    async def work(answer: Answer) -> None:
        await asyncio.sleep(dice.random() * 0.01)
        if not answer.request.json()["stream"]:
            answer.json({})
            return
        answer.head(200, EVENT_STREAM)
        for _ in range(dice.randrange(1, 6)):
            answer.event("more")
            await asyncio.sleep(dice.random() * 0.004)
        answer.end()

    engine.answer = work
    engine.faults.ended_delay_s = 0.003
    outcomes: list[str] = []

    async def user(number: int) -> None:
        for plan in plans[number::40]:
            client = await Client.connect(running.port)
            client.start(plan.path, stream=plan.stream, **plan.body)
            reading = asyncio.ensure_future(client.response())
            await asyncio.wait([reading], timeout=plan.patience_s)
            if reading.done():
                outcomes.append(str(reading.result().status))
            else:
                outcomes.append("left")
                reading.cancel()
                await asyncio.wait([reading])
            await leave(client, reset=plan.resets)

    await asyncio.gather(*(user(number) for number in range(40)))
    assert len(outcomes) == 400
    assert set(outcomes) == {"200", "left"}
    patience = Counter(plan.patience_s for plan in plans)
    assert min(patience[None], patience[0.0]) > 50
    assert outcomes.count("200") >= patience[None]
    assert outcomes.count("left") >= patience[0.0]
    await running.idle()
    assert engine.peak <= engine.slots
    assert running.ledger.violations == 0
    assert running.ledger.lease_count == 0
    assert engine.present == 0
    document = await running.capabilities()
    assert (document["slots_free"], document["leased"], document["foreign"]) == (4, 0, 0)
    await running.clients.pop().close()
    # Idle engine connections are kept for 2 s.
    running.pool.connections.close()
    await eventually(lambda: _sockets() <= sockets_before)
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks_before)


def _sockets() -> int:
    gc.collect()
    links = Path(f"/proc/{os.getpid()}/fd")
    return sum(1 for link in links.iterdir() if _is_socket(link))


def _is_socket(link: Path) -> bool:
    try:
        return str(link.readlink()).startswith("socket:")
    except FileNotFoundError:
        return False


async def test_abort_in_the_instant_of_admission_returns_the_slot(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    """A queued client leaves in the same turn of the loop in which its slot comes free."""
    for _ in range(20):
        busy = await started(sidecar, n=4)
        await eventually(lambda: held.waiting)
        waiting = await started(sidecar, n=4)
        await eventually(lambda: sidecar.queued == 1)
        waiting.reset()
        held.release()
        assert (await busy.response()).status == 200
        await sidecar.idle()
        assert sidecar.ledger.lease_count == 0
        assert engine.present == 0

"""The state stream when its transport or its content breaks: the sidecar never goes on a guess.

How an engine is used is in its reports, of which some are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from orch_sidecar.pools.engine_watcher import EVENT_BYTES
from tests.integration.client import CHAT
from tests.integration.readiness import assert_unavailable, state_is
from tests.integration.running import (
    LOOK_EVERY_S,
    Running,
    Start,
    all_ready,
    eventually,
    pools,
)
from tests.integration.scripted_engine import Engine, Script, ScriptedEngine
from tests.integration.wire import Answer
from vllm_plugin.contracts.lease_protocol import STALE_AFTER_S

# What comes instead of the next chunk; the connection stays open.
BROKEN_FRAMING = {
    "size-zz": b"zz\r\n",
    "size-negative": b"-1\r\n",
    "bare-lf": b"5\nhello\n",
    "nul": b"\x00\x00\r\n\x00",
    "no-crlf-behind-chunk": b"5\r\nhelloXX",
}


def _then_open(data: bytes) -> Script:
    async def script(answer: Answer) -> None:
        answer.write(data)
        await asyncio.Event().wait()

    return script


def _over_and_over(pieces: Callable[[], Iterator[bytes]]) -> Script:
    async def script(answer: Answer) -> None:
        for data in pieces():
            answer.chunk(data)
            await asyncio.sleep(0.05)

    return script


def _dripped() -> Iterator[bytes]:
    yield b"event: change\ndata: {"
    while True:
        yield b" "


def _comments() -> Iterator[bytes]:
    while True:
        yield b": still here\n\n"


def _names_without_data() -> Iterator[bytes]:
    while True:
        yield b"event: heartbeat\n\n"


WITHOUT_AN_EVENT = {
    "silence": _then_open(b""),
    "drip": _over_and_over(_dripped),
    "comments": _over_and_over(_comments),
    "names": _over_and_over(_names_without_data),
} | {name: _then_open(data) for name, data in BROKEN_FRAMING.items()}


def _once(engine: ScriptedEngine, script: Script, seen: asyncio.Event) -> Script:
    """Later streams are refused, so that the sidecar stays stale."""

    async def only(answer: Answer) -> None:
        engine.faults.stream_status = 500
        await seen.wait()
        await script(answer)

    return only


async def test_stale_3_s_after_the_last_good_event_whatever_the_transport_does(
    start: Start, another: Engine
) -> None:
    """One pool for each fault, all at once. Each engine comes back with another number of slots."""
    engines, seen = {name: await another() for name in WITHOUT_AN_EVENT}, asyncio.Event()
    for name, each in engines.items():
        each.faults.stream = _once(each, WITHOUT_AN_EVENT[name], seen)
    running = await all_ready(await start(**pools(**engines)))
    loop, of = asyncio.get_running_loop(), {pool.name: pool for pool in running.sidecar.pools}
    seen.set()
    last_at, looks = loop.time(), 0
    stale_at: dict[str, tuple[float, int]] = {}

    def look() -> bool:
        """Counts looks: a time in which the machine stands still has none."""
        nonlocal looks
        looks += 1
        for name, pool in of.items():
            if pool.watcher.state == "stale":
                stale_at.setdefault(name, (loop.time(), looks))
        return len(stale_at) == len(of)

    await eventually(look)
    for name, (at, at_look) in stale_at.items():
        assert at - last_at > 1.0, name
        assert at_look * LOOK_EVERY_S < STALE_AFTER_S + 1.5, name
    assert_unavailable(await (await running.client()).post(), "no_pool")
    for each in engines.values():
        each.faults.stream, each.faults.stream_status, each.slots = None, 200, 7
        await each.restart()
    await all_ready(running)
    for name, pool in of.items():
        assert (pool.ledger.slots_total, pool.ledger.epoch) == (7, "epoch-2")
        response = await (await running.client()).post(CHAT, [("X-Orch-Pool", name)])
        assert response.status == 200
    for each in engines.values():
        assert each.streams == 1, "the broken connection is closed"


async def test_change_on_a_new_stream_needs_a_whole_state_before_it(
    engine: ScriptedEngine, sidecar: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the last stream reported is not what this one changes."""

    async def changes(answer: Answer) -> None:
        answer.head(200, [("content-type", "text/event-stream")])
        while True:
            answer.chunk(b'event: heartbeat\ndata: {"foreign": 0}\n\n')
            await asyncio.sleep(0.1)

    with monkeypatch.context() as patched:
        patched.setattr(engine, "_stream", changes)
        await engine.restart()
        await state_is(sidecar, "stale")
        await asyncio.sleep(0.3)
        assert sidecar.sidecar.state == "stale"
        assert "before the first state" in sidecar.pool.watcher.message
    await sidecar.ready()


EVENTS_THAT_CANNOT_BE_TRUE = {
    "no-json": b"event: change\ndata: {oh no\n\n",
    "no-object": b"event: change\ndata: [1]\n\n",
    "deep": b"event: change\ndata: " + b"[" * 100_000 + b"\n\n",
    "nan": b'event: change\ndata: {"running": NaN}\n\n',
    "infinite": b'event: change\ndata: {"busy_seconds_total": 1e999}\n\n',
    "huge-foreign": b'event: change\ndata: {"foreign": 1' + b"0" * 400 + b"}\n\n",
    "huge-slots": b'event: change\ndata: {"slots_total": 1' + b"0" * 400 + b"}\n\n",
    "no-slots": b'event: change\ndata: {"slots_total": 0}\n\n',
    "text-for-count": b'event: change\ndata: {"waiting": "x"}\n\n',
    "negative": b'event: change\ndata: {"kv_cache_usage": -1}\n\n',
    "ragged-steps": b'event: heartbeat\ndata: {"steps_by_batch": {"1": [1]}}\n\n',
    "no-lease": b'event: ended\ndata: {"leases": ["x"]}\n\n',
    "other-event": b"event: other\ndata: {}\n\n",
    "endless": b"data: " + b"9" * (EVENT_BYTES + 1),
}


async def test_event_that_cannot_be_true_makes_stale_with_the_reason_and_nothing_of_it_is_taken(
    start: Start, another: Engine
) -> None:
    """One pool for each event, all at once."""
    engines, seen = {name: await another() for name in EVENTS_THAT_CANNOT_BE_TRUE}, asyncio.Event()

    def sending(engine: ScriptedEngine, event: bytes) -> Script:
        async def send(answer: Answer) -> None:
            engine.faults.stream_status = 500  # it stays stale
            await seen.wait()
            answer.chunk(event)
            await asyncio.sleep(60)

        return send

    for name, event in EVENTS_THAT_CANNOT_BE_TRUE.items():
        engines[name].faults.stream = sending(engines[name], event)
    running = await all_ready(await start(**pools(**engines)))
    reasons: dict[str, str] = {}

    def look() -> bool:
        for pool in running.sidecar.pools:
            if pool.watcher.state == "stale":
                reasons.setdefault(pool.name, pool.watcher.message)
        return len(reasons) == len(engines)

    seen.set()
    await eventually(look)
    assert "foreign is an integer of about 400 digits: it must be" in reasons["huge-foreign"]
    assert "waiting is 'x': it must be" in reasons["text-for-count"]
    for pool in running.sidecar.pools:
        document = pool.watcher.document
        assert document is not None
        assert (document["slots_total"], document["waiting"]) == (4, 0)
    client = await running.client()
    for path in ("/metrics", "/v1/capabilities"):
        assert (await client.get(path)).status == 200
    for engine in engines.values():
        engine.faults.stream, engine.faults.stream_status = None, 200
    await all_ready(running)


async def test_busy_engine_is_seen_by_its_heartbeats(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    assert sidecar.pool.watcher.busy_ratio is None
    clock = asyncio.get_running_loop().time
    begin_s = clock()
    engine.report(busy_seconds_total=10.0)
    await eventually(lambda: sidecar.pool.watcher._busy is not None)
    await asyncio.sleep(0.2)
    engine.report(busy_seconds_total=10.1)
    await eventually(lambda: sidecar.pool.watcher.busy_ratio)
    ratio = (await sidecar.capabilities())["engine_busy_ratio"]
    assert 0.9 * 0.1 / (clock() - begin_s) < ratio < 0.55
    metrics = await sidecar.metrics()
    assert metrics['orch_engine_busy_ratio{pool="cloud"}'] == ratio
    assert metrics['orch_engine_busy_seconds_total{pool="cloud"}'] == 10.1

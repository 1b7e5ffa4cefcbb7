"""The state stream when its transport or its content breaks: the sidecar never goes on a guess."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

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

"""Where engines are is for the log: no answer to a client tells it, whatever has gone wrong."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from orch_sidecar.admission.availability import OrderedBy
from tests.integration.client import AT_ONCE, CHAT, COMPLETIONS, MESSAGES, RESPONSES, Aborted
from tests.integration.running import Running, Start, eventually, pools
from tests.integration.scripted_engine import Engine, ScriptedEngine
from tests.integration.scripts import breaks_off, closes, resets
from tests.integration.wire import Answer

HOST = "127.0.0.3"
PAGES = ("/v1/models", "/readyz", "/v1/capabilities", "/v1/pools/a/health", "/version")


@pytest.fixture
async def engines(another: Engine) -> list[ScriptedEngine]:
    """Two of them, at an address that nothing else here has."""
    return [await another(host=HOST) for _ in range(2)]


@pytest.fixture
async def running(start: Start, engines: list[ScriptedEngine]) -> AsyncIterator[Running]:
    """A sidecar in front of both, and of a name that has no address."""
    one, other = engines
    settings = pools(a=one, b=other)
    settings["pools"].append(
        {"name": "h", "url": "http://h.invalid:1", "profile": "cloud", "headless": True}
    )
    settings["pools"].append(
        {"name": "home", "url": f"http://{HOST}:2", "profile": "home", "on_request": True}
    )
    running = await start(**settings, connect_timeout_s=0.2)
    await eventually(lambda: all(pool.watcher.ready for pool in running.sidecar.pools.all[:2]))
    yield running
    for pool in running.sidecar.pools:
        pool.gate.resume()


async def answers_of(running: Running) -> tuple[bytes, set[str]]:
    """Returns everything that clients receive now, and the codes of the refusals among it."""
    received, codes = [], set()
    for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES, "/tokenize"):
        for stream in (False, True):
            for headers in (
                [],
                [("X-Orch-Pool", "h")],
                [("X-Orch-Pool", "a")],
                [("X-Orch-Pool", "home")],
            ):
                client = await running.client()
                try:
                    response = await client.post(path, [*headers, *AT_ONCE], stream=stream)
                except Aborted as aborted:
                    received.append(aborted.body)
                    continue
                received.append(repr(response.fields).encode() + response.body)
                if response.status >= 400:
                    codes.add(str(response.error["code"]))
                await client.close()
    client = await running.client()
    for path in PAGES:
        response = await client.get(path)
        received.append(repr(response.fields).encode() + response.body)
    client.send_request("GET", "/v1/capabilities/stream?pool=a")
    received.append(await client.seen(b"\n\n"))
    return b"\n".join(received), codes


Break = Callable[[Running, list[ScriptedEngine]], Awaitable[None]]


def state_is(state: str) -> Callable[[Running], Awaitable[None]]:
    async def wait(running: Running) -> None:
        both = running.sidecar.pools.all[:2]
        await eventually(lambda: all(pool.state == state for pool in both))

    return wait


async def down(running: Running, engines: list[ScriptedEngine]) -> None:
    for engine in engines:
        await engine.stop()
    await state_is("down")(running)


async def down_but_not_noticed(running: Running, engines: list[ScriptedEngine]) -> None:
    for pool in running.sidecar.pools:
        pool.connections._port = 1


async def set_state(engines: list[ScriptedEngine], **fields: object) -> None:
    for engine in engines:
        engine.report(**fields)


async def stalled(running: Running, engines: list[ScriptedEngine]) -> None:
    await set_state(engines, state="stalled")
    await state_is("stalled")(running)


async def other_profile(running: Running, engines: list[ScriptedEngine]) -> None:
    for engine in engines:
        engine.profile = "offline"
        await engine.restart()
    await state_is("unusable")(running)


def refuses_state(status: int) -> Break:
    async def refuse(running: Running, engines: list[ScriptedEngine]) -> None:
        for engine in engines:
            engine.faults.stream_status = status
            await engine.restart()
        await state_is("unusable" if status in (401, 404) else "stale")(running)

    return refuse


def answering(script: Callable[[Answer], Awaitable[None]]) -> Break:
    async def answer(running: Running, engines: list[ScriptedEngine]) -> None:
        for engine in engines:
            engine.answer = script

    return answer


async def no_http(answer: Answer) -> None:
    answer.write(b"SSH-2.0-OpenSSH\r\n\r\n")


async def draining(running: Running, engines: list[ScriptedEngine]) -> None:
    for pool in running.sidecar.pools:
        pool.gate.drain(OrderedBy.OPERATOR)


CASES: dict[str, tuple[Break, str]] = {
    "down": (down, "no_pool"),
    "not noticed": (down_but_not_noticed, "engine_down"),
    "stalled": (stalled, "engine_stalled"),
    "another profile": (other_profile, "profile_mismatch"),
    "key refused": (refuses_state(401), "engine_refuses_key"),
    "no plugin": (refuses_state(404), "engine_without_plugin"),
    "state refused": (refuses_state(500), "engine_stale"),
    "closes": (answering(closes), "engine_failed"),
    "resets": (answering(resets), "engine_failed"),
    "no HTTP": (answering(no_http), "engine_failed"),
    "breaks off": (answering(breaks_off), "engine_starting"),
    "draining": (draining, "draining"),
}


@pytest.mark.parametrize("name", CASES)
async def test_no_answer_reveals_where_engines_are(
    running: Running, engines: list[ScriptedEngine], name: str
) -> None:
    broken, code = CASES[name]
    await broken(running, engines)
    received, codes = await answers_of(running)
    assert code in codes
    for secret in (HOST, "h.invalid", "http://"):
        assert secret.encode() not in received
    for engine in engines:
        # As a number of its own: a random request id may hold the same five digits.
        assert not re.search(rb"(?<![\w.])%d(?!\w)" % engine.port, received)
    for engine in engines:
        engine.faults.stream_status = 200


async def test_log_names_the_cause_where_a_connection_takes_too_long(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    pool = running.sidecar.pools.all[0]
    pool.unreachable(TimeoutError())
    assert f"pool {pool.name}: no connection to {pool.url}: TimeoutError()" in caplog.messages


async def test_log_has_the_address_of_an_engine_that_cannot_be_reached(
    running: Running, engines: list[ScriptedEngine], caplog: pytest.LogCaptureFixture
) -> None:
    await down_but_not_noticed(running, engines)
    await (await running.client()).post(CHAT, AT_ONCE)
    await down(running, engines)
    for engine in engines:
        lines = [line for line in caplog.messages if engine.url in line]
        assert [line for line in lines if "no connection to" in line]
        assert [line for line in lines if "is down: " in line and str(engine.port) in line]

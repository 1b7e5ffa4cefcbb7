"""What happens when the engine or the sidecar is killed, on a real engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from orch_sidecar.tools.local.check import OtlpReceiver, ReceivedSpan
from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import (
    Seen,
    body,
    engine_state,
    is_ready,
    post,
    session,
    traceparent,
    until,
)
from tests.engine.conftest import SLOTS
from tests.engine.halted import AdmissionRequest, halted
from tests.patience import HANG_S, READY_WITHIN_S


async def answers(url: str) -> bool:
    """Whether a server listens there and answers for its health."""
    try:
        async with aiohttp.request("GET", f"{url}/health") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def waiting(http: aiohttp.ClientSession, cloud: Stack, count: int) -> bool:
    """Whether so many wait for a slot."""
    queue: dict[str, int] = (await engine_state(http, cloud.url))["queue"]
    return sum(queue.values()) == count


async def test_a_killed_engine_is_an_error_in_each_api_and_its_successor_serves_within_a_second(
    cloud: Stack, receiver: OtlpReceiver
) -> None:
    """And a client whose answer is no stream gets a 502."""
    assert cloud.engine is not None
    long = 1500
    async with session() as http:
        traces = [traceparent() for _ in range(4)]
        apis = ("chat", "completions", "responses", "messages")
        asks = [
            (api, body(api, long, stream=True), head)
            for api, (_, head) in zip(apis, traces, strict=True)
        ]
        filling = SLOTS - len(asks) - 1
        asks += [("chat", body("chat", long, stream=True), {})] * filling
        streams, whole = await halted_beside_one_that_is_no_stream(http, cloud, asks)
        # Of a class without an SLO: an interactive one would be refused because its own is missed.
        bulk = {"X-Orch-Class": "bulk"}
        waits = post(http, cloud.url, "chat", body("chat", 4, stream=False), bulk)
        queued = asyncio.create_task(waits)
        await until(lambda: waiting(http, cloud, 1))

        async def all_ended() -> bool:
            return all(answer.done() for answer in (*streams, whole))

        cloud.engine.kill()
        await until(all_ended)
        seen = dict(zip(apis, await asyncio.gather(*streams), strict=False))
        cut = await whole
        assert cut.status == 502
        assert json.loads(cut.data)["error"]["code"] == "engine_failed"

        async def unready() -> bool:
            return not await is_ready(http, cloud)

        await until(unready)
        refused = await post(http, cloud.url, "chat", body("chat", 4, stream=False))
        assert refused.status == 503
        error = json.loads(refused.data)["error"]
        assert error["code"] in ("engine_down", "engine_stale")
        assert error["retriable"] is True
        assert "Retry-After" in refused.headers
        assert not queued.done()

        cloud.start_engine()

        async def engine_is_back() -> bool:
            cloud.check_alive()
            return await answers(cloud.engine_url)

        await until(engine_is_back, READY_WITHIN_S)
        await until(lambda: is_ready(http, cloud))
        assert (await queued).status == 200  # it kept its place all the time
        state = await engine_state(http, cloud.url)
        assert (state["leased"], state["slots_free"]) == (0, SLOTS)
        assert (await post(http, cloud.url, "chat", body("chat", 4, stream=True))).status == 200

    for api in apis:
        check_broken_stream(api, seen[api])
    for trace_id, _ in traces:
        # vLLM's own span died with it; ours say what happened.
        spans = await asyncio.to_thread(
            receiver.wait, trace_id, lambda found: any(map(failed, found)), HANG_S
        )
        assert any(map(failed, spans)), [span.attributes for span in spans]


async def halted_beside_one_that_is_no_stream(
    http: aiohttp.ClientSession, cloud: Stack, asks: Sequence[AdmissionRequest]
) -> tuple[list[asyncio.Task[Seen]], asyncio.Task[Seen]]:
    """Those streams and one more answer are under way, and the engine stands still."""
    assert cloud.engine is not None
    while True:
        whole = asyncio.create_task(post(http, cloud.url, "chat", body("chat", 1900, stream=False)))
        streams = await halted(http, cloud.url, cloud.engine.pid, asks)
        if not whole.done():
            return streams, whole
        os.kill(cloud.engine.pid, signal.SIGCONT)  # too late: all of it again
        await asyncio.gather(*streams)


def failed(span: ReceivedSpan) -> bool:
    """Whether it is the sidecar's, of a request that the engine failed."""
    return span.name.startswith("/v1/") and span.attributes["orch.outcome"] == "engine_failed"


def check_broken_stream(api: str, seen: Seen) -> None:
    """An error in the stream's own form and a clean end of it, or a connection that broke."""
    assert seen.status == 200
    if seen.error is not None:  # an event was half sent
        assert not seen.data.endswith(b"[DONE]\n\n")
        return
    events = seen.data.decode().rstrip("\n").split("\n\n")
    if api in ("chat", "completions"):
        assert events[-1] == "data: [DONE]"
        error = json.loads(events[-2].removeprefix("data: "))["error"]
        assert error["code"] == "engine_failed"
    else:
        name, data = events[-1].split("\n")
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: "))["type"] == "error"


def core_of(cloud: Stack) -> int:
    """The process that computes, apart from the API server."""
    assert cloud.engine is not None
    pid = cloud.engine.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    [core] = [child for child in children if "Engine" in Path(f"/proc/{child}/comm").read_text()]
    return int(core)


async def test_request_queued_while_the_engines_core_dies_is_served_by_its_successor(
    cloud: Stack,
) -> None:
    """The API server goes some milliseconds later, and answers meanwhile."""
    assert cloud.engine is not None
    async with session() as http:
        await until(lambda: is_ready(http, cloud), READY_WITHIN_S)
        core = core_of(cloud)
        ask = ("chat", body("chat", 1500, stream=True), dict[str, str]())
        streams = await halted(http, cloud.url, core, [ask] * SLOTS)
        bulk = {"X-Orch-Class": "bulk"}
        queued = [
            asyncio.create_task(post(http, cloud.url, "chat", body("chat", 4, stream=False), bulk))
            for _ in range(3)
        ]
        await until(lambda: waiting(http, cloud, 3))
        os.kill(core, signal.SIGKILL)
        for seen in await asyncio.gather(*streams):
            assert seen.status == 200
            assert seen.error is not None or b'data: {"error"' in seen.data

        async def is_gone() -> bool:
            assert cloud.engine is not None
            return cloud.engine.exit_code is not None

        await until(is_gone)
        assert not any(each.done() for each in queued)
        cloud.start_engine()
        for answer in await asyncio.wait_for(asyncio.gather(*queued), READY_WITHIN_S):
            assert answer.status == 200
        await until(lambda: is_ready(http, cloud))
        state = await engine_state(http, cloud.url)
        assert (state["leased"], state["slots_free"]) == (0, SLOTS)


async def test_a_killed_sidecar_finds_its_predecessors_requests_and_never_admits_over_them(
    cloud: Stack,
) -> None:
    assert cloud.sidecar is not None

    async def load(http: aiohttp.ClientSession, stop: asyncio.Event, cost: int) -> None:
        while not stop.is_set():
            seen = await post(http, cloud.url, "chat", body("chat", 60, stream=True, n=cost))
            if seen.status != 200:
                await asyncio.sleep(0.05)

    async with session() as http:
        stop = asyncio.Event()
        clients = [asyncio.create_task(load(http, stop, 1 + number % 2)) for number in range(12)]
        for _ in range(3):
            await asyncio.sleep(2.0)
            cloud.sidecar.kill()
            cloud.start_sidecar()

            async def ready() -> bool:
                try:
                    return await is_ready(http, cloud)
                except aiohttp.ClientError:
                    return False

            await until(ready)
        await asyncio.sleep(1.0)
        stop.set()
        await asyncio.gather(*clients)

        async def empty() -> bool:
            state = await engine_state(http, cloud.url)
            return bool(state["leased"] == state["foreign"] == 0)

        await until(empty)
        assert (await engine_state(http, cloud.engine_url))["peak"] == SLOTS
        state = await engine_state(http, cloud.url)
        assert state["oversubscription_violations_total"] == 0

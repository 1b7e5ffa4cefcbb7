"""Identical deterministic requests on a real engine: one decode, and each client its own answer."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDict

from orch_sidecar.tools.local.check import OtlpReceiver
from orch_sidecar.tools.local.stack import Stack
from tests.engine.clients import (
    ATTEMPTS,
    Seen,
    body,
    engine_state,
    post,
    session,
    traceparent,
    until,
)
from tests.patience import HANG_S

PREFIX = {"chat": "chatcmpl-", "completions": "cmpl-"}
STREAMS = 3
SHORT, LONG = 256, 500  # tokens: a second or less, and more than one


async def decodes(http: aiohttp.ClientSession, stack: Stack) -> int:
    """How many requests the engine has been given since it started, by its own count."""
    async with http.get(f"{stack.url}/metrics/engine") as response:
        text = await response.text()
    counts = re.findall(r"^vllm:request_success_total\{[^}]*\} (\S+)$", text, re.MULTILINE)
    return int(sum(map(float, counts)))


async def settled(http: aiohttp.ClientSession, stack: Stack) -> int:
    """`decodes`, when nothing of earlier tests is left in the engine, or uncounted."""

    async def idle() -> bool:
        state = await engine_state(http, stack.url)
        return not (state["running"] or state["waiting"] or state["leased"])

    await until(idle)
    before, count = -1, await decodes(http, stack)
    while count != before:
        await asyncio.sleep(0.5)
        before, count = count, await decodes(http, stack)
    return count


async def more_decodes(http: aiohttp.ClientSession, stack: Stack, before: int, count: int) -> None:
    """So many, and no more: counts come a little after answers."""

    async def counted() -> bool:
        return await decodes(http, stack) >= before + count

    await until(counted)
    await asyncio.sleep(0.3)
    assert await decodes(http, stack) == before + count


def deterministic(api: str, tokens: int, *, stream: bool) -> dict[str, Any]:
    more: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
    return body(api, tokens, stream=stream, temperature=0, **more)


def documents(seen: Seen, *, stream: bool) -> list[dict[str, Any]]:
    """The objects of an answer."""
    if not stream:
        return [json.loads(seen.data)]
    events = seen.data.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    return [json.loads(event.removeprefix(b"data: ")) for event in events[:-2]]


def text_of(seen: Seen, *, stream: bool) -> str:
    text = ""
    for document in documents(seen, stream=stream):
        for choice in document["choices"]:
            part = choice.get("delta") or choice.get("message") or choice
            text += part.get("content") or part.get("text") or ""
    return text


@pytest.mark.parametrize(
    ("api", "stream"),
    [
        ("chat", True),
        pytest.param("completions", False, marks=pytest.mark.long),
        pytest.param("chat", False, marks=pytest.mark.long),
        pytest.param("completions", True, marks=pytest.mark.long),
    ],
)
async def test_three_at_once_are_one_decode_with_three_ids(
    cloud: Stack, api: str, stream: bool
) -> None:
    request = deterministic(api, SHORT, stream=stream)
    async with session() as http:
        before = await settled(http, cloud)
        lone = await post(http, cloud.url, api, request)
        await more_decodes(http, cloud, before, 1)
        # On a machine that is busy with other things one may come when the others have ended.
        for _ in range(ATTEMPTS):
            before = await settled(http, cloud)
            answers = await asyncio.gather(
                *(post(http, cloud.url, api, request) for _ in range(STREAMS))
            )
            if await settled(http, cloud) == before + 1:
                break
        else:
            pytest.fail(f"never one decode for {STREAMS} at once")
    assert text_of(lone, stream=stream)
    ids = [CIMultiDict(answer.headers)["X-Request-Id"] for answer in answers]
    assert len(set(ids)) == STREAMS
    for answer, own in zip(answers, ids, strict=True):
        assert answer.status == 200
        assert {each["id"] for each in documents(answer, stream=stream)} == {PREFIX[api] + own}
        assert answer.data.replace(own.encode(), ids[0].encode()) == answers[0].data
        assert text_of(answer, stream=stream) == text_of(lone, stream=stream)
        assert documents(answer, stream=stream)[-1]["usage"]["completion_tokens"] == SHORT


async def test_others_get_all_of_it_when_the_first_is_killed_midway(
    cloud: Stack, receiver: OtlpReceiver
) -> None:
    request = deterministic("chat", LONG, stream=True)
    async with session() as http:
        lone = await post(http, cloud.url, "chat", request)
        for _ in range(ATTEMPTS):
            traces = [traceparent() for _ in range(STREAMS)]
            await asyncio.sleep(0.3)  # for the count of the one before
            before = await settled(http, cloud)
            clients, begun = [], [asyncio.Event() for _ in traces]
            for (_, headers), event in zip(traces, begun, strict=True):
                call = post(http, cloud.url, "chat", request, headers, on_data=event.set)
                clients.append(asyncio.create_task(call))
                await begun[0].wait()
            await asyncio.gather(*(event.wait() for event in begun))
            # On a machine that is busy with other things all of it may come at once.
            if killed := clients[0].cancel():
                break
        assert killed
        answers = await asyncio.gather(*clients[1:])
        await more_decodes(http, cloud, before, 1)
    own = [CIMultiDict(answer.headers)["X-Request-Id"].encode() for answer in answers]
    assert answers[0].data.replace(own[0], own[1]) == answers[1].data
    for answer in answers:
        assert answer.error is None
        assert documents(answer, stream=True)[-1]["usage"]["completion_tokens"] == LONG
        assert text_of(answer, stream=True) == text_of(lone, stream=True)
    # One decode, in the trace of the first request; the others' spans are no more than theirs.
    led = await asyncio.to_thread(
        receiver.wait, traces[0][0], lambda found: len(found) == 4, HANG_S
    )
    assert {span.name for span in led} >= {"engine.request", "llm_request"}
    for trace_id, _ in traces[1:]:
        [server] = await asyncio.to_thread(
            receiver.wait, trace_id, lambda found: len(found) == 1, HANG_S
        )
        assert server.attributes["orch.coalesced"] is True

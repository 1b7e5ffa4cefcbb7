"""Clients that watch the queue, and what they are shown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tests.integration.client import CHAT, Client, Response
from tests.integration.running import Running, eventually
from tests.integration.scripted_answers import AnswerScript, nth_answer

WATCH = ("X-Orch-Queue-Events", "sse")
_QUEUED = re.compile(rb": queued position=(\d+)(?: start_ms=(\d+))?\n\n")


@dataclass(frozen=True)
class Shown:
    """What a client was shown of the queue, and the rest of its body."""

    positions: list[int]
    starts_ms: list[int | None]
    started: int  # how often
    rest: bytes


def shown(body: bytes) -> Shown:
    """Takes the comments out of a body."""
    places = _QUEUED.findall(body)
    started = re.findall(rb": started waited_ms=\d+\n\n", body)
    rest = re.sub(rb"(?m)^: (?:queued|started) [^\n]*\n\n", b"", body)
    return Shown(
        [int(position) for position, _ in places],
        [int(start) if start else None for _, start in places],
        len(started),
        rest,
    )


async def watching(
    running: Running, *headers: tuple[str, str], path: str = CHAT, **body: Any
) -> Client:
    """A client that has begun to watch a request which has to wait."""
    client, queued = await running.client(), running.queued
    client.start(path, [WATCH, *headers], **body)
    await eventually(lambda: running.queued == queued + 1)
    await client.seen(b": queued position=")
    return client


async def busy(running: Running, script: AnswerScript) -> Client:
    """Returns a client whose request takes all slots, until `free`."""
    number = len(script.answers) + 1
    client = await running.client()
    client.start(CHAT, stream=False, n=4, max_tokens=100)
    await nth_answer(script, number)
    return client


async def free(script: AnswerScript, client: Client, number: int = 1) -> Response:
    """Ends the request that takes all slots."""
    answer = await nth_answer(script, number)
    answer.answer.json({"id": "chatcmpl-other"})
    answer.finished.set()
    return await client.response()

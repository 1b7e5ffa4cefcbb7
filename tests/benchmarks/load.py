"""A closed loop of streaming clients, light enough to share a core with the server under test.

It counts events without parsing them. A request generates an exact number of tokens, and each
event counts as its share of them, as a busy API server puts several tokens into one. Requests are
bulk, as an SLO would reject some of them.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import uvloop

_EVENT: Final = b"data: "


@dataclass(slots=True)
class Window:
    """What came between warm-up and end. Times in seconds."""

    seconds: float = 0.0
    tokens: float = 0.0
    answers: int = 0
    asked: int = 0
    """All requests, those of the warm-up and the end included."""
    errors: list[str] = field(default_factory=list)
    first_event_s: list[float] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    def ttft_s(self, quantile: int) -> float:
        """A percentile of the times to the first event."""
        return statistics.quantiles(self.first_event_s, n=100)[quantile - 1]


class _Loop:
    def __init__(self, port: int, tokens: int, model: str, fields: bytes) -> None:
        body = json.dumps(
            {
                "model": model,
                "prompt": "A slot is the right of one sequence to be in the batch.",
                "max_tokens": tokens,
                "ignore_eos": True,
                "stream": True,
            }
        ).encode()
        self.port = port
        self.request = (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nX-Orch-Class: bulk\r\n"
            b"%bContent-Length: %d\r\n\r\n%b" % (fields, len(body), body)
        )
        self.tokens = tokens
        self.window = Window()
        self.counting = False
        self.stopping = False

    async def client(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            while not self.stopping:
                await self._ask(reader, writer)
        finally:
            writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = time.monotonic()
        self.window.asked += 1
        writer.write(self.request)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            self.window.errors.append(head.split(b"\r\n", 1)[0].decode())
            self.stopping = True
            return
        first, tail = True, b""
        events = counted = 0
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            data = await reader.read(65_536)
            if not data:
                self.window.errors.append("truncated")
                self.stopping = True
                return
            found = data.count(_EVENT)
            events += found
            if self.counting:
                if first:
                    self.window.first_event_s.append(time.monotonic() - asked)
                counted += found
            first = False
            tail = (tail + data)[-16:]
        self.window.tokens += self.tokens * counted / events
        if self.counting:
            self.window.answers += 1


async def _run(loop: _Loop, clients: int, warm_s: float, seconds: float) -> Window:
    tasks = [asyncio.create_task(loop.client()) for _ in range(clients)]
    await asyncio.sleep(warm_s)
    loop.counting, began = True, time.monotonic()
    await asyncio.sleep(seconds)
    loop.counting, loop.window.seconds = False, time.monotonic() - began
    loop.stopping = True
    await asyncio.gather(*tasks)
    return loop.window


def closed_loop(
    port: int,
    *,
    clients: int,
    tokens: int,
    seconds: float,
    warm_s: float = 2.0,
    model: str = "tiny",
    fields: bytes = b"",
) -> Window:
    """Runs `clients` that each ask again when their answer has ended.

    `fields`: more lines of each request's head.
    """
    return uvloop.run(_run(_Loop(port, tokens, model, fields), clients, warm_s, seconds))


def spread(ratios: Sequence[float]) -> str:
    """Median and range of ratios."""
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"

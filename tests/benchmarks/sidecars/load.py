"""Clients that send one streaming request after another, and what they were answered.

Streams are counted, not parsed: the clients share cores with what is measured. Each prompt is
sent once, so that no two requests are identical.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.benchmarks.policy.work import MODEL

_EVENT: Final = b"data: "
_ID: Final = b'"id":'
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Request:
    """A request for `tokens` tokens in each of `choices` sequences."""

    tokens: int
    interactive: bool = True
    choices: int = 1
    number: int = field(default_factory=lambda: next(_numbers))

    def message(self) -> bytes:
        body = json.dumps(
            {
                "model": MODEL,
                "prompt": f"Attempt {self.number}: a slot is a sequence's place in the batch.",
                "max_tokens": self.tokens,
                "ignore_eos": True,
                "stream": True,
                "n": self.choices,
            }
        ).encode()
        of_class = b"" if self.interactive else b"X-Orch-Class: bulk\r\n"
        return (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b"
            % (of_class, len(body), body)
        )


@dataclass(slots=True)
class Answer:
    """What became of an attempt. Times are seconds of the event loop.

    `sent`: a connection was open, so a sidecar may have got it. `status`: 0 without a head.
    `whole`: it ended as it should. `counted`: those of its events that came in the window.
    """

    request: Request
    port: int
    sent_s: float
    sent: bool = False
    status: int = 0
    whole: bool = False
    code: str = ""
    id: bytes = b""
    queue_ms: float = 0.0
    first_s: float = 0.0
    events: int = 0
    counted: int = 0

    @property
    def first_byte_s(self) -> float:
        return self.first_s - self.sent_s


class Window:
    """The answers of a run; `open`: what comes now counts."""

    def __init__(self) -> None:
        self.open = False
        self.seconds = 0.0
        self.answers: list[Answer] = []
        self.first_in_window: list[Answer] = []

    @property
    def served(self) -> float:
        """Requests in the window; one that reaches beyond it by the part of its events in it."""
        return sum(each.counted / each.events for each in self.answers if each.whole)

    @property
    def tokens(self) -> float:
        return sum(
            each.request.tokens * each.request.choices * each.counted / each.events
            for each in self.answers
            if each.whole
        )

    def failures(self) -> Counter[str]:
        """Attempts without a whole answer, by what they got."""
        return Counter(
            each.code or f"status {each.status}" for each in self.answers if not each.whole
        )

    def first_bytes_s(self, *, interactive: bool) -> list[float]:
        return [
            each.first_byte_s
            for each in self.first_in_window
            if each.request.interactive is interactive
        ]


class Caller:
    """A client with at most one connection to each port."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._loop = asyncio.get_running_loop()
        self._open: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def ask(self, port: int, request: Request) -> Answer:
        """Sends a request and reads the answer, as much of it as comes."""
        answer = Answer(request, port, self._loop.time())
        self._window.answers.append(answer)
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await self._connection(port)
            answer.sent = True
            writer.write(request.message())
            keep = await self._read(reader, answer)
        except (OSError, asyncio.IncompleteReadError) as error:
            answer.code = "refused" if writer is None else f"lost: {type(error).__name__}"
            keep = False
        if keep and writer is not None:
            self._open[port] = reader, writer
        elif writer is not None:
            writer.close()
        return answer

    def close(self) -> None:
        for _, writer in self._open.values():
            writer.close()
        self._open.clear()

    async def _connection(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        kept = self._open.pop(port, None)
        if kept is not None:
            if not kept[0].at_eof() and not kept[1].is_closing():
                return kept
            kept[1].close()
        return await asyncio.open_connection("127.0.0.1", port)

    async def _read(self, reader: asyncio.StreamReader, answer: Answer) -> bool:
        """Returns whether the connection can be used again."""
        head = await reader.readuntil(b"\r\n\r\n")
        line, *lines = head[:-4].split(b"\r\n")
        answer.status = int(line.split(b" ")[1])
        fields = dict(each.lower().split(b": ", 1) for each in lines)
        for part in fields.get(b"server-timing", b"").split(b","):
            name, _, value = part.strip().partition(b";dur=")
            if name == b"queue":
                answer.queue_ms = float(value)
        if b"content-length" in fields:
            body = await reader.readexactly(int(fields[b"content-length"]))
            answer.code = str(json.loads(body)["error"]["code"])
        else:
            await self._read_stream(reader, answer)
        return fields.get(b"connection") != b"close"

    async def _read_stream(self, reader: asyncio.StreamReader, answer: Answer) -> None:
        window, tail = self._window, b""
        while not tail.endswith(_LAST_CHUNK):
            data = await reader.read(65_536)
            if not data:
                raise ConnectionResetError("the stream was cut")
            if not answer.first_s:
                answer.first_s = self._loop.time()
                answer.id = data.partition(_ID)[2].partition(b",")[0].strip(b' "')
                if window.open:
                    window.first_in_window.append(answer)
            found = data.count(_EVENT)
            answer.events += found
            if window.open:
                answer.counted += found
            tail = (tail + data)[-64:]
        answer.whole = b"[DONE]" in tail
        if not answer.whole:
            answer.code = "no end"


async def closed_loop(
    ports: Sequence[int],
    *,
    seconds: float,
    tokens: int,
    bulk: int = 0,
    interactive: int = 0,
    warm_s: float = 1.0,
    roams: bool = False,
    look: Callable[[], Awaitable[None]] | None = None,
) -> Window:
    """Runs so many clients of each class, which ask again when they were answered.

    Each has a port of its own, unless it `roams` from one to another. `look` is called when the
    window opens, and when it closes.
    """
    window, stopping = Window(), asyncio.Event()

    async def client(number: int) -> None:
        caller, dice = Caller(window), random.Random(number)
        try:
            while not stopping.is_set():
                port = dice.choice(ports) if roams else ports[number % len(ports)]
                answer = await caller.ask(port, Request(tokens, interactive=number >= bulk))
                if not answer.whole:
                    await asyncio.sleep(0.05)
        finally:
            caller.close()

    clients = [asyncio.create_task(client(number)) for number in range(bulk + interactive)]
    loop = asyncio.get_running_loop()
    await asyncio.sleep(warm_s)
    if look is not None:
        await look()
    window.open, began = True, loop.time()
    await asyncio.sleep(seconds)
    window.open, window.seconds = False, loop.time() - began
    if look is not None:
        await look()
    stopping.set()
    await asyncio.gather(*clients)
    return window


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many percent do not exceed; NaN of nothing."""
    ordered = sorted(values)
    return (
        ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else float("nan")
    )

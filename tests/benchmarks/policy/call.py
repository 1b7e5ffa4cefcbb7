"""One request on its own connection.

Streams are counted, not parsed: the load generator shares a core with the server under test.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

from tests.benchmarks.policy.work import Request

PREDICTED_START: Final = b"x-orch-predicted-start-ms"
QUEUE_POSITION: Final = b"x-orch-queue-position"

ROW: Final = (
    "class", "prompt_tokens", "output_tokens", "scheduled_s", "sent_s", "first_s", "last_s",
    "cut_s", "status", "code", "tokens", "queue_ms", "predicted_start_ms", "queue_position",
)  # fmt: skip

_EVENT: Final = b"data: "
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
_TAIL: Final = 1024  # the last event that says something fits in


class Clock(Protocol):
    """A run, as its calls know it."""

    cut: bool  # what is under way is being dropped

    def now(self) -> float:
        """Seconds since its start."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, and how their class is sent. Headers end with CRLF."""

    port: int
    headers: Callable[[Request], bytes] = lambda request: b""
    body: Callable[[Request], dict[str, Any]] = lambda request: {}

    def message(self, request: Request) -> bytes:
        body = request.body(self.body(request))
        return (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\n%bContent-Length: %d\r\n\r\n%b"
            % (self.headers(request), len(body), body)
        )


@dataclass(slots=True)
class Answer:
    """What became of a request. Times are seconds since the start of the run; None: never.

    `events`: data events but the closing one, so tokens, but for some that came together.
    `code`: of a refusal, or of a failure reported in the stream. `headers`: of the answer.
    `cut_s`: when it was cut off, unfinished.
    """

    request: Request
    sent_s: float | None = None
    status: int | None = None
    headers: dict[bytes, bytes] = field(default_factory=dict)
    first_s: float | None = None
    last_s: float | None = None
    events: int = 0
    complete: bool = False
    code: str | None = None
    cut_s: float | None = None

    @property
    def tokens(self) -> int:
        return self.request.output_tokens if self.complete else self.events

    def number(self, name: bytes) -> float | None:
        """A header that is a number."""
        try:
            return float(self.headers[name])
        except (KeyError, ValueError):
            return None

    def row(self) -> list[Any]:
        """For the record, in the order of ROW; times in seconds to the millisecond."""
        times = (self.request.at_s, self.sent_s, self.first_s, self.last_s, self.cut_s)
        return [
            self.request.service_class.value,
            self.request.prompt_tokens,
            self.request.output_tokens,
            *(None if at is None else round(at, 3) for at in times),
            self.status,
            self.code,
            self.tokens,
            self.queue_ms,
            self.number(PREDICTED_START),
            self.number(QUEUE_POSITION),
        ]

    @property
    def queue_ms(self) -> float | None:
        """The wait for a slot, as the sidecar tells it in Server-Timing."""
        for part in self.headers.get(b"server-timing", b"").split(b","):
            name, _, value = part.strip().partition(b";dur=")
            if name == b"queue":
                return float(value)
        return None


class Call(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, run: Clock, answer: Answer, message: bytes) -> None:
        self._run = run
        self._answer = answer
        self._message = message
        self._head = b""
        self._tail = b""
        self._length: int | None = None  # of a body that is not in chunks; None: it is
        self._read = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        if self._run.cut:
            self.transport.abort()
            return
        self._answer.sent_s = self._run.now()
        self.transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer.status is None:
            self._head += data
            head, blank, data = self._head.partition(b"\r\n\r\n")
            if not blank:
                return
            self._read_head(head)
        if not data:
            return
        self._read += len(data)
        events = (self._tail[1 - len(_EVENT) :] + data).count(_EVENT)
        if events:
            answer.last_s = self._run.now()
            answer.events += events
            if answer.first_s is None:
                answer.first_s = answer.last_s
        self._tail = data if len(data) >= _TAIL else (self._tail + data)[-_TAIL:]
        if self._length is None:
            if self._tail.endswith(_LAST_CHUNK):
                self._end()
        elif self._read >= self._length:
            self._end()

    def _read_head(self, head: bytes) -> None:
        status, *fields = head.split(b"\r\n")
        self._answer.status = int(status.split(b" ", 2)[1])
        headers = dict(line.lower().split(b": ", 1) for line in fields)
        self._answer.headers = headers
        if b"content-length" in headers:
            self._length = int(headers[b"content-length"])

    def _end(self) -> None:
        answer, tail = self._answer, self._tail
        if answer.status != 200:
            answer.code = _code(tail) or f"status {answer.status}"
        elif b"[DONE]" in tail and b'data: {"error"' not in tail:
            answer.events -= 1
            answer.complete = True
        else:
            answer.code = _code(tail) or "no end"
        answer.last_s = self._run.now()
        assert self.transport is not None
        self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        answer = self._answer
        if not answer.complete and answer.code is None:
            if self._run.cut:
                answer.cut_s = self._run.now()
            else:
                answer.code, answer.last_s = "connection lost", self._run.now()
        if not self.ended.done():
            self.ended.set_result(None)


def _code(text: bytes) -> str | None:
    start = text.find(b'{"error"')
    if start < 0:
        return None
    try:
        error, _ = json.JSONDecoder().raw_decode(text[start:].decode(errors="replace"))
        return str(error["error"].get("code"))
    except (ValueError, KeyError, AttributeError):
        return "error"

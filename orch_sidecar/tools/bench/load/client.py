"""The HTTP client of a measurement: sends requests and records when each event arrives.

Timestamps are taken as bytes come, before any parsing. Connections are those of the sidecar's own
client, which never sends a request to a connection that a server may be closing.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from orch_sidecar.api import usage
from orch_sidecar.tools.bench.load.call import Call, Fate, Request, shown
from orch_sidecar.tools.bench.load.endpoint import Endpoint
from orch_sidecar.wire import event_stream
from orch_sidecar.wire.engine_connection import ConnectionPool, EngineConnection
from orch_sidecar.wire.http1 import Body, FramingError, Head, body_of, parse_head

_MOST_BYTES: Final = 64 * 2**20  # of an event, or of a line


class EventStream:
    """Reads an OpenAI event stream: which events carry tokens, its usage and its end.

    `usage`: input and output tokens, None where not reported. `error`: the code of an error event,
    empty without one. `done`: whether `[DONE]` has arrived. `generated`: the events so far with a
    choice, which are those with tokens or with the end of a sequence: also of one whose last token
    has no text.
    """

    def __init__(self) -> None:
        self.usage: tuple[int | None, int | None] = (None, None)
        self.error = ""
        self.done = False
        self.generated = 0
        self._events = event_stream.EventStream(_MOST_BYTES)

    def feed(self, payload: bytes) -> int:
        """Returns how many events with tokens these bytes complete."""
        try:
            return sum(self._parse(data) for _, data in self._events.feed(payload))
        except ValueError as error:
            self.error = self.error or str(error)
            return 0

    def end(self) -> None:
        """Ends the stream, and with it an event without a final blank line."""
        self.feed(b"\n\n")

    def _parse(self, data: bytes) -> bool:
        """Returns whether the event carries tokens."""
        if data.rstrip() == b"[DONE]":
            self.done = True
            return False
        try:
            document = json.loads(data)
        except ValueError:
            document = None
        if not isinstance(document, Mapping):
            self.error = self.error or "an event is not a JSON object"
            return False
        if document.get("error"):
            self.error = code_of(document)
        if document.get("usage"):
            self.usage = usage.read(data)[:2]
        choices = document.get("choices")
        if not isinstance(choices, list) or not choices:
            return False
        self.generated += 1
        return any(has_tokens(choice) for choice in choices)


def has_tokens(choice: Any) -> bool:
    """Returns whether a choice of an event stands for generated tokens.

    One without text does too, unless it is the last: a character of several tokens is sent once
    it is complete, and a special token never. The first event of a chat, with nothing but a role,
    does not: vLLM sends it with the first token, other servers before they begin.
    """
    if not isinstance(choice, Mapping):
        return False
    delta = choice.get("delta")
    content: object = choice.get("text")
    if isinstance(delta, Mapping):
        content = any(value for name, value in delta.items() if name != "role")
        if not content and "role" in delta:
            return False
    return bool(content) or choice.get("finish_reason") is None


def code_of(answer: object) -> str:
    """Returns the code of an OpenAI error document, or of its bytes; else how its text begins."""
    if isinstance(answer, bytes):
        text = answer.decode(errors="replace")
        try:
            answer = json.loads(text)
        except ValueError:
            answer = text
    error = answer.get("error") if isinstance(answer, Mapping) else None
    if isinstance(error, Mapping):
        code = error.get("code") or error.get("type") or error.get("message")
        if code:
            return shown(str(code))
    return shown(str(error or answer)) or "an empty response"


# Connections beyond a server's listen backlog (1024 in the sidecar, 128 elsewhere) are dropped by
# its kernel and retried after a second.
CONNECTING_AT_ONCE: Final = 64
# The kernel tries that often, and longer, where nothing answers.
_CONNECT_S: Final = 60.0

_MAX_BODY_BYTES: Final = 65_536  # the end of a response that is not a stream
_MILLISECONDS: Final = re.compile(rb"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_LOST: Final = "the connection was lost"


class Response:
    """Reads the response to one request, and records it in its call.

    `ended`: is done when it has ended, whatever its outcome. `reusable`: whether its connection can
    be used again then.
    """

    def __init__(self, call: Call, now: Callable[[], float]) -> None:
        self._call, self._now = call, now
        self._head: Head | None = None
        self._body: Body | None = None
        self._buffer = b""  # an incomplete head
        self._answer = b""  # the body of a response that is not a stream
        self._events: EventStream | None = None
        self._last_token_s: float | None = None
        self.reusable = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # Receiver

    def received(self, data: bytes) -> None:
        at_s = self._now()
        if self.ended.done():
            self.reusable = False  # unsolicited data
            return
        try:
            body = self._body
            if body is None:
                body = self._begin(self._buffer + data)
                if body is None:
                    return
                data = self._buffer
            payload = body.feed(data)
        except FramingError as error:
            self.end(Fate.FAILED, f"the response is not valid HTTP: {error}")
            return
        if payload:
            self._read(payload, at_s)
        if body.done:
            self._finish(at_s)

    def lost(self, error: Exception | None) -> None:
        if self.ended.done():
            self.reusable = False
        elif self._body is not None and not self._body.delimits_itself and error is None:
            self._finish(self._now())
        else:
            self.end(Fate.FAILED, _LOST)

    def end(self, fate: Fate, why: str, at_s: float | None = None) -> None:
        """Records the outcome."""
        call = self._call
        call.fate, call.why = fate, why
        call.ended_s = self._now() if at_s is None else at_s
        if not self.ended.done():
            self.ended.set_result(None)

    def _begin(self, data: bytes) -> Body | None:
        self._buffer = data
        parsed = parse_head(data)
        while parsed is not None and parsed[0].status < 200:
            self._buffer = self._buffer[parsed[1] :]
            parsed = parse_head(self._buffer)
        if parsed is None:
            return None
        self._head, start = parsed
        self._buffer = self._buffer[start:]
        self._call.status = self._head.status
        kind = dict(self._head.fields).get(b"content-type", b"").lower()
        if kind.startswith(b"text/event-stream") and self._head.status == 200:
            self._events = EventStream()
        self._body = body_of(self._head, dechunk=True)
        return self._body

    def _read(self, payload: bytes, at_s: float) -> None:
        if self._events is None:
            self._answer = (self._answer + payload)[-_MAX_BODY_BYTES:]
            return
        call, generated = self._call, self._events.generated
        for _ in range(self._events.feed(payload)):
            call.event_s.append(at_s)
        if self._events.generated > generated:
            self._last_token_s = at_s
            if call.on_events is not None:
                call.on_events(call)

    def _finish(self, at_s: float) -> None:
        call, head, events = self._call, self._head, self._events
        assert head is not None
        assert self._body is not None
        self.reusable = head.keep_alive and self._body.delimits_itself
        call.queue_ms = _queue_ms(head)
        if head.status in (429, 503):
            self.end(Fate.REFUSED, code_of(self._answer))
        elif head.status != 200:
            self.end(Fate.FAILED, f"status {head.status}: {code_of(self._answer)}")
        elif events is None:
            call.input_tokens, call.output_tokens, _, _ = usage.read(self._answer)
            self.end(Fate.ANSWERED, "", at_s)
        else:
            self._finish_stream(events, at_s)

    def _finish_stream(self, events: EventStream, at_s: float) -> None:
        call = self._call
        events.end()
        call.input_tokens, call.output_tokens = events.usage
        if events.error:
            self.end(Fate.FAILED, f"error in the stream: {events.error}")
        elif not events.done:
            self.end(Fate.FAILED, "the stream ended without [DONE]")
        else:
            if call.output_tokens is None and call.event_s:
                call.output_tokens, call.counted_by_events = len(call.event_s), True
            # The usage, [DONE] and the end of HTTP come after the last token.
            last_s = self._last_token_s
            self.end(Fate.ANSWERED, "", at_s if last_s is None else last_s)


async def exchange(
    connection: EngineConnection, call: Call, message: bytes, now: Callable[[], float]
) -> bool:
    """Sends a request and returns when its response has ended: whether the connection is reusable.

    Cancellation closes the connection and marks the call as cut.
    """
    response = Response(call, now)
    if not connection.open:
        response.end(Fate.FAILED, _LOST)
        return False
    connection.send(response, message)
    try:
        await response.ended
    except asyncio.CancelledError:
        response.end(Fate.CUT, "")
        raise
    finally:
        if not response.reusable:
            connection.close()
    return response.reusable


class Client:
    """Sends requests to one endpoint, on idle connections or on new ones."""

    def __init__(self, endpoint: Endpoint, now: Callable[[], float]) -> None:
        self._pool = ConnectionPool(endpoint.url, _CONNECT_S)
        self._now = now
        self._connecting = asyncio.Semaphore(CONNECTING_AT_ONCE)

    async def run(self, call: Call, request: Request) -> None:
        """Sends a request, and returns when it has ended."""
        call.sent_s = self._now()
        connection = self._pool.take()
        if connection is None:
            try:
                async with self._connecting:
                    call.sent_s = self._now()
                    connection = await self._pool.acquire()
            except OSError as error:
                call.fate, call.ended_s = Fate.FAILED, self._now()
                why = error.strerror or str(error) or f"not within {_CONNECT_S:g} s"
                call.why = f"connection failed: {shown(why)}"
                return
        call.connected = True
        if await exchange(connection, call, request.message, self._now):
            self._pool.give_back(connection)
        _check_length(call, request)

    def close(self) -> None:
        self._pool.close()


def _check_length(call: Call, request: Request) -> None:
    """Compares the token counts with the request, which supplies an unreported prompt length."""
    if call.fate is not Fate.ANSWERED:
        return
    if call.input_tokens is None:
        call.input_tokens = request.input_tokens
    call.length_as_requested = request.input_tokens in (None, call.input_tokens) and (
        request.output_tokens in (None, call.output_tokens)
    )


def _queue_ms(head: Head) -> float | None:
    """Returns the wait for a slot that a sidecar reports in `Server-Timing`."""
    for part in dict(head.fields).get(b"server-timing", b"").split(b","):
        name, _, value = part.strip().partition(b";dur=")
        if name == b"queue" and _MILLISECONDS.fullmatch(value) is not None:
            return float(value)
    return None

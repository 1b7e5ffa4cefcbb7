"""The response to a request of a measurement: records when each event arrives, as bytes come and
before any parsing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final

from msgspec import MsgspecError, Struct, json

from orch_sidecar.api import usage
from orch_sidecar.tools.bench.load.call import Call, Fate, Request, shown
from orch_sidecar.wire.event_stream import EventStream
from orch_sidecar.wire.http1 import Body, FramingError, body_of, parse_head

_MAX_EVENT_BYTES: Final = 64 * 2**20  # of an event, or of a line


class _Choice(Struct):
    text: str | None = None
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None

    @property
    def has_tokens(self) -> bool:
        """Whether it stands for generated tokens.

        One without text does too, unless it is the last: a character of several tokens is sent once
        it is complete, and a special token never. The first event of a chat, with nothing but a
        role, does not: vLLM sends it with the first token, other servers before they begin.
        """
        delta = self.delta or {}
        if self.text or any(value for name, value in delta.items() if name != "role"):
            return True
        return self.finish_reason is None and "role" not in delta


class _Event(Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None


_EVENT: Final = json.Decoder(_Event)


def code_of(answer: bytes) -> str:
    """Returns the code of an OpenAI error document; of another text, how it begins."""
    try:
        found = json.decode(answer)
    except (ValueError, MsgspecError):
        found = answer.decode(errors="replace")
    match found:
        case {"error": {**fields}}:
            found = fields.get("code") or fields.get("type") or fields.get("message") or fields
        case {"error": text}:
            found = text
    return shown(str(found)) or "an empty response"


_MAX_BODY_BYTES: Final = 65_536  # the end of a response that is not a stream
# The wait for a slot, as a sidecar reports it in `Server-Timing`.
_QUEUE_MS: Final = re.compile(
    rb"(?:^|,)[ \t]*queue;dur=([0-9]{1,12}(?:\.[0-9]{1,9})?)[ \t]*(?:,|$)"
)


class Response:
    """Reads the response to one request, and records it in its call.

    `ended`: is done when it has ended. `reusable`: whether its connection can be used again then.
    """

    def __init__(self, call: Call, request: Request, now: Callable[[], float]) -> None:
        self._call, self._request, self._now = call, request, now
        self._body: Body | None = None
        self._keep_alive = False
        self._buffer = b""  # an incomplete head
        self._answer = b""  # the body of a response that is not a stream
        self._events: EventStream | None = None
        self._error = ""  # the code of an error event, or what is wrong with one
        self._done = False  # [DONE] has arrived
        # When the last event with a choice came: one with tokens, or with the end of a sequence,
        # whose last token may have no text.
        self._last_choice_s: float | None = None
        self.reusable = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def received(self, data: bytes) -> None:
        at_s = self._now()
        if self.ended.done():
            self.reusable = False  # unsolicited data
            return
        try:
            payload = self._payload(data)
        except FramingError as error:
            self._end(Fate.FAILED, f"the response is not valid HTTP: {error}", at_s)
            return
        if self._events is not None:
            self._feed(self._events, payload, at_s)
        else:
            self._answer = (self._answer + payload)[-_MAX_BODY_BYTES:]
        if self._body is not None and self._body.done:
            self._finish(at_s)

    def lost(self, error: Exception | None) -> None:
        if self.ended.done():
            self.reusable = False
        elif self._body is not None and not self._body.delimits_itself and error is None:
            self._finish(self._now())
        else:
            self._end(Fate.FAILED, "the connection was lost", self._now())

    def _end(self, fate: Fate, why: str, at_s: float) -> None:
        """Records the outcome."""
        self._call.fate, self._call.why, self._call.ended_s = fate, why, at_s
        self.ended.set_result(None)

    def _payload(self, data: bytes) -> bytes:
        """Returns what these bytes have of the body. Raises FramingError."""
        if self._body is not None:
            return self._body.feed(data)
        self._buffer += data
        while (parsed := parse_head(self._buffer)) is not None:
            head, start = parsed
            self._buffer = self._buffer[start:]
            if head.status < 200:
                continue
            self._body, self._keep_alive = body_of(head, dechunk=True), head.keep_alive
            self._call.status, fields = head.status, dict(head.fields)
            waited = _QUEUE_MS.search(fields.get(b"server-timing", b""))
            self._call.queue_ms = None if waited is None else float(waited[1])
            kind = fields.get(b"content-type", b"").lower()
            if kind.startswith(b"text/event-stream") and head.status == 200:
                self._events = EventStream(_MAX_EVENT_BYTES)
            return self._body.feed(self._buffer)
        return b""

    def _feed(self, events: EventStream, payload: bytes, at_s: float) -> None:
        """Reads the events that these bytes complete, which came at that time."""
        try:
            for _, data in events.feed(payload):
                self._read(data, at_s)
        except (ValueError, MsgspecError) as error:
            self._error = self._error or f"an event is invalid: {error}"

    def _read(self, data: bytes, at_s: float) -> None:
        if data.rstrip() == b"[DONE]":
            self._done = True
            return
        call, event = self._call, _EVENT.decode(data)
        if event.error:
            self._error = code_of(data)
        if event.usage:
            call.input_tokens, call.output_tokens = usage.read(data)[:2]
        if event.choices:
            self._last_choice_s = at_s
            if any(choice.has_tokens for choice in event.choices):
                call.first_s = at_s if call.first_s is None else call.first_s
                call.event_s.append(at_s)
            if call.on_events is not None:
                call.on_events(any(choice.finish_reason for choice in event.choices))

    def _finish(self, at_s: float) -> None:
        call, request, fate, why = self._call, self._request, Fate.ANSWERED, ""
        self.reusable = self._keep_alive and self._body is not None and self._body.delimits_itself
        if call.status in (429, 503):
            fate, why = Fate.REFUSED, code_of(self._answer)
        elif call.status != 200:
            fate, why = Fate.FAILED, f"status {call.status}: {code_of(self._answer)}"
        elif self._events is None:
            call.input_tokens, call.output_tokens, _, _ = usage.read(self._answer)
        else:
            self._feed(self._events, b"\n\n", at_s)  # ends an event without a final blank line
            if self._error:
                fate, why = Fate.FAILED, f"error in the stream: {self._error}"
            elif not self._done:
                fate, why = Fate.FAILED, "the stream ended without [DONE]"
            elif call.output_tokens is None and call.event_s:
                call.output_tokens, call.counted_by_events = len(call.event_s), True
            # The usage, [DONE] and the end of HTTP come after the last token.
            at_s = at_s if self._last_choice_s is None else self._last_choice_s
        if fate is Fate.ANSWERED:
            if call.input_tokens is None:
                call.input_tokens = request.input_tokens
            call.length_as_requested = request.input_tokens in (None, call.input_tokens) and (
                request.output_tokens in (None, call.output_tokens)
            )
        self._end(fate, why, at_s)

"""Reads an OpenAI event stream: which events carry tokens, its usage and its end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from orch_sidecar.wire import event_stream

_MOST_BYTES: Final = 64 * 2**20  # of an event, or of a line
_SHOWN: Final = 80  # characters of a server's message


class EventStream:
    """One stream.

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
        self._count(document.get("usage"))
        choices = document.get("choices")
        if not isinstance(choices, list) or not choices:
            return False
        self.generated += 1
        return any(has_tokens(choice) for choice in choices)

    def _count(self, usage: Any) -> None:
        if isinstance(usage, Mapping):
            read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
            self.usage = (
                read if type(read) is int else None,
                written if type(written) is int else None,
            )


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
    """Returns the code of an OpenAI error document, or else the beginning of its text."""
    error = answer.get("error") if isinstance(answer, Mapping) else None
    if isinstance(error, Mapping):
        code = error.get("code") or error.get("type") or error.get("message")
        if code:
            return shown(str(code))
    return shown(str(error or answer)) or "an empty response"


def shown(text: str, most: int = _SHOWN) -> str:
    """Returns the beginning of a server's text as one line without control characters."""
    line = "".join(char if char.isprintable() else " " for char in text[: 4 * most])
    return " ".join(line.split())[:most]

"""The events of an OpenAI stream, as they come in: which bring tokens, and how it ends.

Pure. Bytes may be cut anywhere. Lines end in LF or CRLF.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

_END: Final = re.compile(rb"\r?\n\r?\n")
_LONGEST_END: Final = 4
_SHOWN: Final = 80  # characters of what a server says


class EventStream:
    """One stream. `usage`: input and output tokens, None where no event tells them. `error`: the
    code of what went wrong, empty if nothing did. `done`: whether its end has come."""

    def __init__(self) -> None:
        self.usage: tuple[int | None, int | None] = (None, None)
        self.error = ""
        self.done = False
        self._held = b""  # an event that has not ended

    def feed(self, payload: bytes) -> int:
        """How many events that ended in these bytes have brought something."""
        # What ends an event may have begun before.
        place = max(0, len(self._held) - _LONGEST_END + 1)
        held = self._held + payload
        brought = start = 0
        for end in _END.finditer(held, place):
            brought += self._took(held[start : end.start()])
            start = end.end()
        self._held = held[start:]
        return brought

    def end(self) -> None:
        """Nothing more comes: what has no blank line after it has ended, too."""
        self._took(self._held)
        self._held = b""

    def _took(self, event: bytes) -> bool:
        lines = (line for line in event.splitlines() if line.startswith(b"data:"))
        data = b"\n".join(line[5:].removeprefix(b" ") for line in lines)
        if not data:
            return False  # a comment, which keeps the connection alive
        if data.rstrip() == b"[DONE]":
            self.done = True
            return False
        try:
            document = json.loads(data)
        except ValueError:
            document = None
        if not isinstance(document, Mapping):
            self.error = self.error or "an event is no JSON object"
            return False
        if document.get("error"):
            self.error = code_of(document)
        self._count(document.get("usage"))
        choices = document.get("choices")
        return isinstance(choices, list) and any(brings_tokens(choice) for choice in choices)

    def _count(self, usage: Any) -> None:
        if isinstance(usage, Mapping):
            read, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
            self.usage = (
                read if type(read) is int else None,
                written if type(written) is int else None,
            )


def brings_tokens(choice: Any) -> bool:
    """Whether a choice of an event stands for generated tokens.

    One without a text does, too, unless it is the last: a character of several tokens is told
    when it is whole, and a special token never. The first event of a chat, which only says whose
    turn it is, does not: vLLM sends it with the first token, others before they have begun.
    """
    if not isinstance(choice, Mapping):
        return False
    delta = choice.get("delta")
    said: object = choice.get("text")
    if isinstance(delta, Mapping):
        said = any(value for name, value in delta.items() if name != "role")
        if not said and "role" in delta:
            return False
    return bool(said) or choice.get("finish_reason") is None


def code_of(answer: object) -> str:
    """The code of an OpenAI error, from the document that has it; else a few words of it."""
    error = answer.get("error") if isinstance(answer, Mapping) else None
    if isinstance(error, Mapping):
        said = error.get("code") or error.get("type") or error.get("message")
        if said:
            return shown(str(said))
    return shown(str(error or answer)) or "an empty answer"


def shown(text: str, most: int = _SHOWN) -> str:
    """The beginning of what a server says, as one line that does nothing to a terminal."""
    line = "".join(char if char.isprintable() else " " for char in text[: 4 * most])
    return " ".join(line.split())[:most]

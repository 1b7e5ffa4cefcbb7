"""JSON that somebody else has written, one document after the other.

Pure. What Python's reader has no error of its own for (nesting without end, a number of thousands
of digits) is no JSON here like anything else that cannot be read.
"""

from __future__ import annotations

import json
from typing import Any, Final

_DECODER: Final = json.JSONDecoder()


class InvalidJson(ValueError):
    """A text that cannot be read. `line`: from 1; `rule`: what is wrong there."""

    def __init__(self, line: int, rule: str) -> None:
        self.line, self.rule = line, rule
        super().__init__(f"{line}: no JSON: {rule}")


def whole(text: str) -> Any:
    """The document that a text is. Raises InvalidJson."""
    at = len(text) - len(text.lstrip())
    document, end = part(text, at)
    rest = text[end:].lstrip()
    if rest:
        raise InvalidJson(_line(text, len(text) - len(rest)), "Extra data")
    return document


def part(text: str, at: int) -> tuple[Any, int]:
    """The document that begins there, and where it ends. Raises InvalidJson."""
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise InvalidJson(error.lineno, error.msg) from None
    except RecursionError:
        raise InvalidJson(_line(text, at), "it is nested too deeply") from None
    except ValueError as error:  # of int()
        raise InvalidJson(_line(text, at), str(error)) from None


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1

"""Parses JSON that other programs wrote: one document, or several one after the other.

Pure. Input that makes Python's parser fail in other ways than a JSONDecodeError (unlimited
nesting, numbers of thousands of digits, bytes that are not UTF-8) is an InvalidJson, too.
"""

from __future__ import annotations

import json
from typing import Any, Final

_DECODER: Final = json.JSONDecoder()


class InvalidJson(ValueError):
    """Text that cannot be parsed. `line`: from 1; `rule`: what is wrong there."""

    def __init__(self, line: int, rule: str) -> None:
        self.line, self.rule = line, rule
        super().__init__(f"{line}: invalid JSON: {rule}")


def decode(content: bytes) -> str:
    """Decodes UTF-8 with or without a byte order mark. Raises InvalidJson."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidJson(line, "the text is not UTF-8") from None


def parse(text: str) -> Any:
    """Parses a text that is one document. Raises InvalidJson."""
    document, end = _parse_at(text, 0)
    if end < len(text):
        raise InvalidJson(_line(text, end), "Extra data")
    return document


def parse_all(text: str) -> list[Any]:
    """Parses at least one document, as many as there are. Raises InvalidJson."""
    documents: list[Any] = []
    at = 0
    while at < len(text) or not documents:
        document, at = _parse_at(text, at)
        documents.append(document)
    return documents


def _parse_at(text: str, at: int) -> tuple[Any, int]:
    """Returns the next document, and the offset of what follows it but white space."""
    at = _skip_space(text, at)
    try:
        document, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise InvalidJson(error.lineno, error.msg) from None
    except RecursionError:
        raise InvalidJson(_line(text, at), "it is nested too deeply") from None
    except ValueError as error:  # of int()
        raise InvalidJson(_line(text, at), str(error)) from None
    return document, _skip_space(text, end)


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1

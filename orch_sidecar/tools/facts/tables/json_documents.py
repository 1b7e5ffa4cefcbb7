"""Parses JSON that other programs wrote: one document, or several one after the other.

Pure. Input that makes Python's parser fail in other ways than a JSONDecodeError (unlimited
nesting, numbers of thousands of digits, bytes that are not UTF-8) is an InvalidJson, too.
"""

from __future__ import annotations

import json
from typing import Any, Final

from orch_sidecar.tools.facts.tables.table import UnreadableFile

_DECODER: Final = json.JSONDecoder()


class InvalidJson(UnreadableFile):
    """Text that cannot be parsed; the message gives the file, the line, and what is wrong there."""


def parse_all(name: str, content: bytes) -> list[tuple[int, Any]]:
    """Parses at least one document in UTF-8, with or without a byte order mark.

    `name`: of the file. Returns each with the line in which it begins. Raises InvalidJson.
    """

    def invalid(lines_before: int, rule: str) -> InvalidJson:
        return InvalidJson(f"{name}:{lines_before + 1}: invalid JSON: {rule}")

    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        rule = "the text is not UTF-8 (it must not be compressed)"
        raise invalid(content.count(b"\n", 0, error.start), rule) from None
    documents: list[tuple[int, Any]] = []
    at = _skip_space(text, 0)
    while at < len(text) or not documents:
        line = text.count("\n", 0, at)
        try:
            document, at = _DECODER.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise invalid(error.lineno - 1, error.msg) from None
        except RecursionError:
            raise invalid(line, "it is nested too deeply") from None
        except ValueError as error:  # of int()
            raise invalid(line, str(error)) from None
        documents.append((line + 1, document))
        at = _skip_space(text, at)
    return documents


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at

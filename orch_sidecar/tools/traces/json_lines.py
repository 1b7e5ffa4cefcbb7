"""Parses traces in JSONL: Mooncake's, vLLM's, GuideLLM's.

They have the same names, and neither the unit of the time nor the size of a block is written in
the file. The size follows from the lengths: n blocks of B tokens hold (n - 1) B + 1 to n B of them.
Whole numbers as times beside blocks of 512 tokens are Mooncake's milliseconds, all others seconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from math import inf
from typing import Any, Final

from orch_sidecar.tools.traces.row import Row, invalid, seconds, tokens
from orch_sidecar.tools.traces.trace import InvalidTrace

_TIME, _PROMPT, _OUTPUT, _BLOCKS = "timestamp", "input_length", "output_length", "hash_ids"
# Mooncake's, and the default of vLLM's `--timed-trace-chunk-hash-size`.
_MOONCAKE: Final = 512
_USUAL: Final = (_MOONCAKE, 16)


def json_lines(name: str, text: str) -> tuple[list[Row], int | None]:
    """Returns the rows and the tokens of a block, None without blocks. Raises InvalidTrace."""
    rows, whole = [], True
    for line, written in enumerate(StringIO(text), 1):
        if not written.strip():
            continue
        document = _document(name, line, written)
        at = document[_TIME]
        whole = whole and type(at) is int
        rows.append(
            Row(
                line,
                seconds(name, line, _TIME, at),
                tokens(name, line, _PROMPT, document[_PROMPT]),
                tokens(name, line, _OUTPUT, document[_OUTPUT]),
                _blocks(name, line, document.get(_BLOCKS)),
            )
        )
    block_tokens = _block_tokens(name, rows)
    if whole and block_tokens == _MOONCAKE:
        rows = [replace(row, at_s=row.at_s / 1000) for row in rows]
    return rows, block_tokens


def _document(name: str, line: int, written: str) -> dict[str, Any]:
    try:
        document = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise InvalidTrace(f"{name}:{line}: the line must be JSON: {error}") from None
    if not isinstance(document, dict):
        raise invalid(name, line, "the line", document, "an object")
    missing = [each for each in (_TIME, _PROMPT, _OUTPUT) if each not in document]
    if missing:
        raise InvalidTrace(f"{name}:{line}: {missing[0]} is missing: each row must have it")
    return document


def _blocks(name: str, line: int, value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise invalid(name, line, _BLOCKS, value, "a list of integers")
    return tuple(value)


def _block_tokens(name: str, rows: Sequence[Row]) -> int | None:
    """Returns the size of a block that agrees with all lengths; the usual ones first."""
    least, most = 1, inf
    for row in rows:
        count = len(row.blocks)
        if not count:
            continue
        least = max(least, -(-row.prompt_tokens // count))
        if count > 1:
            most = min(most, (row.prompt_tokens - 1) // (count - 1))
        if least > most:
            rule = f"as many as blocks of one size need for {_PROMPT} {row.prompt_tokens}"
            raise invalid(name, row.line, f"the number of {_BLOCKS}", count, rule)
    if not any(row.blocks for row in rows):
        return None
    return next((usual for usual in _USUAL if least <= usual <= most), least)

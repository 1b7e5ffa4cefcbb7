"""Parses traces in CSV: Azure's, BurstGPT's, GuideLLM's."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from typing import Final

from orch_sidecar.tools.traces.row import Row, invalid, seconds, tokens
from orch_sidecar.tools.traces.trace import InvalidTrace


def _date_s(name: str, line: int, column: str, value: str) -> float:
    """Returns the seconds of a date; one without a time zone counts as UTC."""
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        rule = "a date and time such as 2023-11-16 18:17:03.9799600"
        raise invalid(name, line, column, value, rule) from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a format, and how its times are parsed."""

    time: str
    prompt: str
    output: str
    at_s: Callable[[str, int, str, str], float] = seconds


_FORMATS: Final = {
    "Azure": _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", _date_s),
    "BurstGPT": _Columns("Timestamp", "Request tokens", "Response tokens"),
    "GuideLLM": _Columns("timestamp", "input_length", "output_length"),
}


_SHOWN: Final = 200  # characters of the columns in an error


def csv_rows(name: str, text: str) -> list[Row]:
    """Returns the rows of a CSV file. Raises InvalidTrace."""
    lines = csv.reader(StringIO(text, newline=None), strict=True)
    try:
        head = [column.strip() for column in next(lines, [])]
        columns = _columns(name, head)
        places = [head.index(each) for each in (columns.time, columns.prompt, columns.output)]
        rows = []
        for cells in lines:
            line = lines.line_num
            if not cells:
                continue
            if len(cells) != len(head):
                raise InvalidTrace(
                    f"{name}:{line}: the row has {len(cells)} cells: it must have the {len(head)} "
                    "of the first line"
                )
            at, prompt, output = (cells[place].strip() for place in places)
            rows.append(
                Row(
                    line,
                    columns.at_s(name, line, columns.time, at),
                    tokens(name, line, columns.prompt, prompt),
                    tokens(name, line, columns.output, output),
                )
            )
    except csv.Error as error:
        raise InvalidTrace(f"{name}:{lines.line_num}: the line must be CSV: {error}") from None
    return rows


def _columns(name: str, head: list[str]) -> _Columns:
    for columns in _FORMATS.values():
        if {columns.time, columns.prompt, columns.output} <= set(head):
            return columns
    known = "; ".join(
        f"{each.time}, {each.prompt}, {each.output} ({tool})" for tool, each in _FORMATS.items()
    )
    found = ascii(", ".join(head) or "none")[1:-1]
    raise InvalidTrace(
        f"{name}:1: the columns are {found[:_SHOWN]}: they must include those of a "
        f"known trace: {known}; or the file must be JSONL"
    )

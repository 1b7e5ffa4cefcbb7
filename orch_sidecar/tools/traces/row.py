"""A row of a trace file, and the rules that its values obey in every format."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from orch_sidecar.tools.traces.trace import InvalidTrace

# Far beyond any context length: a larger number is of another column.
_MOST_TOKENS: Final = 100_000_000
_MOST_DIGITS: Final = 18
_SHOWN: Final = 60  # characters of a value in an error


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `at_s`: seconds of the trace's own clock."""

    line: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def invalid(name: str, line: int, column: str, value: object, rule: str) -> InvalidTrace:
    """Makes an error that gives file, line, value and rule."""
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return InvalidTrace(f"{name}:{line}: {column} is {shown}: it must be {rule}")


def tokens(name: str, line: int, column: str, value: Any) -> int:
    """Returns a number of tokens, from 0. `value`: an integer, or its digits."""
    found = value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        found = int(value) if len(value) <= _MOST_DIGITS else None
    if type(found) is not int or not 0 <= found <= _MOST_TOKENS:
        raise invalid(name, line, column, value, f"an integer from 0 to {_MOST_TOKENS}")
    return found


def seconds(name: str, line: int, column: str, value: Any) -> float:
    """Returns a finite number. `value`: a number, or its text."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            found = float(value)
        except (ValueError, OverflowError):
            found = float("nan")
        if isfinite(found):
            return found
    raise invalid(name, line, column, value, "a number")

"""Formats numbers, and tables of them for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

NONE = "-"
_GIB = 2**30


def number_text(value: float | None) -> str:
    """Formats a number with four significant digits, and all digits of large ones; NONE of None."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    digits = min(6, max(0, 3 - math.floor(math.log10(abs(value)))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def value_text(name: str, value: object) -> str:
    """Formats a value of a document by the unit in its name; empty of None."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{each} {value_text(each, part)}" for each, part in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(value_text(name, each) for each in value)
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value / _GIB:.2f} GiB"
    return number_text(value) if isinstance(value, float) else str(value)


def rounded(value: float | None, digits: int = 0) -> str:
    """Formats a number with so many digits after the point; NONE of None."""
    return NONE if value is None else f"{value:.{digits}f}"


def percent(share: float | None, digits: int = 1, *, sign: bool = False) -> str:
    """Formats a share as a percentage; NONE of None."""
    return NONE if share is None else f"{100 * share:{'+' if sign else ''}.{digits}f} %"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> list[str]:
    """Returns the lines of a table. `texts`: the columns from the left that are aligned left."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if at < texts else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]

"""Formats numbers, tables for a terminal, and the elements of a page.

Texts and attributes become HTML only here, by the standard library's serializer: a model's name
that looks like a tag is shown as it is. Characters that would hide or reorder a text are replaced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final
from xml.etree.ElementTree import Element, tostring

NONE = "-"


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
        return f"{value / 2**30:.2f} GiB"
    return number_text(value) if isinstance(value, float) else str(value)


def rounded(value: float | None, digits: int = 0) -> str:
    """Formats a number with so many digits after the point; NONE of None."""
    return NONE if value is None else f"{value:.{digits}f}"


def percent(share: float | None, digits: int = 1, *, sign: bool = False) -> str:
    """Formats a share as a percentage; NONE of None."""
    return NONE if share is None else f"{100 * share:{'+' if sign else ''}.{digits}f} %"


def counted(number: int, noun: str) -> str:
    """Formats a count: `no rows`, `1 row`, `2 rows`."""
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


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


# Control characters, marks and overrides of the direction of writing, halves of surrogate pairs.
_NOT_SHOWN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    "\ud800-\udfff\ufffe\uffff]"
)


def element(tag: str, *children: Element | str, **attributes: str) -> Element:
    """Returns an element. In the names of attributes `_` stands for `-`; a last `_` is dropped."""
    names = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    made = Element(tag, {name: shown(value) for name, value in names.items()})
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + shown(child)
        else:
            made.text = (made.text or "") + shown(child)
    return made


def shown(text: str) -> str:
    """Replaces the characters that no page can show."""
    return _NOT_SHOWN.sub("\N{REPLACEMENT CHARACTER}", text)


def html_of(root: Element) -> str:
    """Returns the document of its root element."""
    return f"<!DOCTYPE html>\n{tostring(root, encoding='unicode', method='html')}\n"

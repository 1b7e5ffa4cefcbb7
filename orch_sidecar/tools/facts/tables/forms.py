"""The forms of values: text, numbers and their rounding, choices; characters that no cell may have.

Pure.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

# A float keeps fifteen digits.
_WHOLE: Final = "0|[1-9][0-9]{0,14}"
# A float as `format_notes` formats it.
_FLOAT: Final = r"[0-9]+(\.[0-9]+)?(e[+-]?[0-9]{1,2})?"

# Letters and marks without a shape: `Default_Ignorable_Code_Point` of Unicode, as far as Python
# calls them printable, and the blank pattern of Braille.
_WITHOUT_SHAPE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)

# OWASP, CSV Injection: a cell is a formula if it begins with one of these, also as full-width
# characters, after white space or an opening quote. A spreadsheet whose separator is the semicolon
# begins a cell after each of them.
_FORMULA: Final = re.compile(r"""(?:\A|;)[\s"']*([=+\-@\uff1d\uff0b\uff0d\uff20])""")

_CONTROL_NAMES: Final = {"\0": "NULL", "\t": "CHARACTER TABULATION", "\x1b": "ESCAPE"}

SIGNIFICANT_DIGITS: Final = 6  # of a number in a row
# Far below any rounding, and above the errors of the arithmetic here.
_ARITHMETIC: Final = 1e-12


class Rounded(NamedTuple):
    """The least and the largest number that a rounded one may stand for; both are included."""

    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Form:
    """What a value must be: the whole text matches `pattern`, and if it is a number, it `holds`.
    `what`: all of that in words. `decimals`: to which producers of rows round a number one after
    the other, before the six digits."""

    what: str
    pattern: str
    holds: Callable[[float], bool] | None = None
    decimals: Sequence[int] = ()

    def violated_rule(self, value: str) -> str | None:
        """Returns the rule if a value violates it, else None."""
        valid = re.fullmatch(self.pattern, value) is not None
        if valid and self.holds is not None:
            valid = math.isfinite(float(value)) and self.holds(float(value))
        return None if valid else f"must be {self.what}"

    def before_rounding(self, value: float) -> Rounded:
        """Returns the numbers that may have been rounded to this one, which is not negative.

        Floats in notes and the throughput have six significant digits (`format_notes`,
        `row_fields`), after roundings to some decimals; the rounding to six digits changes nothing
        where the last of those left no more digits.
        """
        slack = value * _ARITHMETIC + sum(0.5 * 10.0**-each for each in self.decimals)
        if value > 0:
            last_digit = math.floor(math.log10(value)) + 1 - SIGNIFICANT_DIGITS
            slack += 0.5 * 10.0**last_digit if last_digit > -self.decimals[-1] else 0.0
        return Rounded(max(0.0, value - slack), value + slack)


def whole(least: int) -> Form:
    """Returns the form of a count."""
    what = f"a whole number in plain digits, at least {least}"
    return Form(what, _WHOLE, lambda value: value >= least)


def number(unit: str, least: float, most: float = math.inf, decimals: Sequence[int] = ()) -> Form:
    """Returns the form of a number between two others, both included."""
    limits = f"of at least {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
    return Form(f"a number {unit}{limits}", _FLOAT, lambda value: least <= value <= most, decimals)


def one_of(*values: str) -> Form:
    """Returns the form of a choice."""
    what = values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    return Form(what, "|".join(map(re.escape, values)))


ABOVE_0: Final = Form("a number above 0", _FLOAT, lambda value: value > 0)
TEXT: Final = Form(
    "one line that is not empty, and must not begin or end with white space",
    r"\S([^\n\r]*\S)?",
)
THROUGHPUT: Final = Form(
    "tokens per second, a decimal number above 0 such as 92.72",
    rf"({_WHOLE})(\.[0-9]+)?",
    lambda value: value > 0,
    decimals=(4,),
)


def invisible_rule(value: str) -> str | None:
    """Returns the rule that a cell's characters violate, with the first of them; None if none. What
    a reader cannot see must not distinguish two values; line breaks have a rule of their own."""
    for place, character in enumerate(value, 1):
        visible = character.isprintable() and not _WITHOUT_SHAPE.match(character)
        if not visible and character not in "\n\r":
            return f"must not contain {_name(character)} (character {place} of the cell)"
    return None


def formula_rule(value: str) -> str | None:
    """Returns the rule that a cell violates if a spreadsheet would execute it, None otherwise."""
    found = _FORMULA.search(value)
    if found is None:
        return None
    where = "begin with" if found.start() == 0 else "have after a semicolon"
    return (
        f"must not {where} {_name(found[1])} (character {found.start(1) + 1} of the cell): a "
        "spreadsheet executes it as a formula"
    )


def _name(character: str) -> str:
    default = _CONTROL_NAMES.get(character, "a character without a name")
    return f"U+{ord(character):04X} {unicodedata.name(character, default)}"

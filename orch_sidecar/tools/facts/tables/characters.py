"""Finds characters that no cell may contain, and cells that a spreadsheet would execute.

Pure. What a reader cannot see must not distinguish two values: control characters, characters that
change the direction of text or have no width, and white space other than a plain space. Line breaks
have a rule of their own, where they are allowed at all.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

# Categories of Unicode: control, format (bidirectional controls, zero width, byte order mark),
# surrogate, private, unassigned, and separators of lines, paragraphs and words.
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_ALLOWED: Final = frozenset(" \n\r")
# Letters and marks without a shape: `Default_Ignorable_Code_Point` of Unicode outside of the
# categories above, and the blank pattern of Braille.
_WITHOUT_SHAPE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)

# OWASP, CSV Injection: a cell is a formula if it begins with one of these, also as full-width
# characters, after white space or an opening quote. A spreadsheet whose separator is the semicolon
# begins a cell after each of them.
_FORMULA: Final = re.compile(r"""(?:\A|;)[\s"']*([=+\-@\uff1d\uff0b\uff0d\uff20])""")

_CONTROL_NAMES: Final = {"\0": "NULL", "\t": "CHARACTER TABULATION", "\x1b": "ESCAPE"}


def violated_rule(value: str) -> str | None:
    """Returns the rule that a cell's characters violate, with the first of them; None if none."""
    for number, character in enumerate(value, 1):
        if character in _ALLOWED:
            continue
        if unicodedata.category(character) in _INVISIBLE or _WITHOUT_SHAPE.match(character):
            return f"must not contain {_name(character)} (character {number} of the cell)"
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

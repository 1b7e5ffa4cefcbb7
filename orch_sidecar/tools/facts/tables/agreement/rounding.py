"""The numbers that a rounded number may have been.

Pure. Floats in notes and the throughput have six significant digits (`format_notes`,
`throughput_text`), after roundings to some decimals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SIGNIFICANT_DIGITS: Final = 6
# Far below any rounding, and above the errors of the arithmetic here.
_FLOAT: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Interval:
    """The least and the largest number that a text may stand for; both are included."""

    least: float
    most: float


# The decimals to which producers of rows round one after the other, before the six digits.
WINDOW_S: Final = (6, 3)
TIME_MS: Final = (4, 3)
THROUGHPUT: Final = (4,)
BATCH_MEAN: Final = (3,)


def before_rounding(text: str, decimals: Sequence[int]) -> Interval:
    """Returns the numbers that may have been rounded to this one, which is not negative.

    `decimals`: of the roundings before that to six digits, which changes nothing where the last
    of them left no more digits.
    """
    value = float(text)
    slack = value * _FLOAT + sum(0.5 * 10.0**-each for each in decimals)
    if value > 0:
        last_digit = math.floor(math.log10(value)) + 1 - _SIGNIFICANT_DIGITS
        slack += 0.5 * 10.0**last_digit if last_digit > -decimals[-1] else 0.0
    return Interval(max(0.0, value - slack), value + slack)

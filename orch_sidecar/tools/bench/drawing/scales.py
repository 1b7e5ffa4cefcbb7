"""Scales of axes: their bounds, their ticks, and the numbers beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_TICKS: Final = 5
# Values that span more than this are easier to read on a logarithmic axis.
WIDE: Final = 30.0
# Values that differ by less than this share are one on an axis.
_SAME: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from `low` to `high`, with its ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Returns where a value lies, from 0 at `low` to 1 at `high`; values beyond are clamped."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear(values: Iterable[float], *, least: float | None = None) -> Scale:
    """Returns a scale with all values between its outer ticks. `least`: a value that it includes,
    such as 0."""
    found = [*values] + ([] if least is None else [least])
    low, high = min(found), max(found)
    if high - low <= _SAME * abs(high):
        low, high = (0.0, 2 * high) if high > 0 else (low, low + 1)
    step = _step((high - low) / _TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(step * n, 12) for n in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], ticks)


def logarithmic(values: Iterable[float]) -> Scale:
    """Returns a scale of values above 0, from power to power of ten or from 1, 2, 5 to 1, 2, 5."""
    found = [*values]
    low, high = min(found), max(found)
    if low <= 0:
        raise ValueError(f"{low} cannot lie on a logarithmic axis: it must be above 0")
    factors = (1, 2, 5) if high / low < 1e3 else (1,)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    marks = [factor * 10.0**power for power in powers for factor in factors]
    lower = [mark for mark in marks if mark <= low * (1 + 1e-9)]
    upper = [mark for mark in marks if mark >= high * (1 - 1e-9) and mark > lower[-1]]
    ticks = tuple(mark for mark in marks if lower[-1] <= mark <= upper[0])
    return Scale(ticks[0], ticks[-1], ticks, logarithmic=True)


def exact(low: float, high: float) -> Scale:
    """Returns a linear scale that ends at its values, with its ticks between them."""
    found = linear([low, high])
    return Scale(low, high, tuple(tick for tick in found.ticks if low <= tick <= high))


def of_times(values: Sequence[float]) -> Scale:
    """Returns the scale of a distribution of times: logarithmic where they differ widely.

    Such a scale begins at a thousandth of the largest: what is shorter lies at its edge.
    """
    most = max(values)
    if min(values) > 0 and most > WIDE * min(values):
        return logarithmic([max(value, most / 1000) for value in values])
    return linear(values, least=0.0 if min(values) < 0.5 * max(values) else None)


def number_text(value: float) -> str:
    """Formats a number with four significant digits, and all digits of large ones."""
    if value == 0:
        return "0"
    digits = min(6, max(0, 3 - math.floor(math.log10(abs(value)))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def tick_text(value: float) -> str:
    """Formats the number beside a tick."""
    return f"{value:.10g}"


def _step(least: float) -> float:
    """Returns the smallest of 1, 2, 5 times a power of ten that is not less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))

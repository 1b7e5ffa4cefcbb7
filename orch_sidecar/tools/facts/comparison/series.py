"""The values of a plot: series of points, and panels of series.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What the points of a series are."""

    MEASURED = "measured"  # markers, connected by lines
    CURVE = "curve"  # values of a formula: a line without markers


@dataclass(frozen=True, slots=True)
class Style:
    """How a series looks. `line`, `marker`: in the notation of matplotlib.

    `line` is empty for markers alone. `color`: an index into `axes.COLORS`, which repeat.
    """

    line: str = "-"
    marker: str = "o"
    color: int = 0
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One line. `letter`: what marks its end beside the axes; empty for none.

    Raises ValueError for sequences of different lengths, and without a point.
    """

    name: str
    kind: Kind
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    style: Style = Style()
    letter: str = ""

    def __post_init__(self) -> None:
        if not self.xs or len(self.xs) != len(self.ys):
            raise ValueError(
                f"{self.name}: {len(self.xs)} x and {len(self.ys)} y must be equally many, and some"
            )


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes, with units in their labels. At least one series.

    `same_scale`: y is logarithmic if and only if x is, so that what is proportional is straight.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    same_scale: bool = False

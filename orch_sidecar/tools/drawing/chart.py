"""Says what a chart shows: series of points on a pair of axes, and lines that mark values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Final

# Sizes, as of batches, that span more than this are crowded on a linear axis.
_WIDE: Final = 4.0


class Look(StrEnum):
    """How the values of a series are drawn."""

    POINTS = "points"  # marked, and joined by a line, as the style says
    BARS = "bars"  # between edges, of which there is one more than values
    STEPS = "steps"  # the same, as a line
    COUNTS = "counts"  # how many of the xs there are in each part of the axis; no ys
    SHARES = "shares"  # which share of the xs is up to each place of the axis; no ys


@dataclass(frozen=True, slots=True)
class Style:
    """How a series looks. `line`, `marker`: in matplotlib's notation (`$A$` is a letter), empty
    for none.

    `color`: an index into `picture.COLORS`, which repeat. `hollow`: what does not count.
    """

    line: str = "-"
    marker: str = "o"
    color: int = 0
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one style. `name`: empty where another chart of the picture explains the style.
    `margins`: half the interval around each y, None for none.

    Raises ValueError where the numbers of xs and ys do not fit, and without a point.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: Style = Style()
    look: Look = Look.POINTS
    margins: Sequence[float | None] = ()

    def __post_init__(self) -> None:
        values = self.xs if self.look in (Look.COUNTS, Look.SHARES) else self.ys
        edges = 1 if self.look in (Look.BARS, Look.STEPS) else 0
        if not values or len(self.xs) != len(values) + edges:
            raise ValueError(
                f"{self.name}: {len(self.xs)} x and {len(self.ys)} y do not belong together, or "
                "there is none"
            )


@dataclass(frozen=True, slots=True)
class Marked:
    """A value of an axis that a line marks. `is_bound`: it must not be exceeded."""

    name: str
    at: float
    is_bound: bool = False
    horizontal: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis. `label`: with the unit. `low`, `high`: its ends; None: where the values end, and 0
    at the lower end of one that is not `log`. `ticks`: empty for round numbers."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """Series on one pair of axes. `about`: what it shows and hides, in words."""

    title: str
    about: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    marked: Sequence[Marked] = ()

    @property
    def explained(self) -> list[str]:
        """The names that a legend has: none of a line that is alone, unless it is a letter's."""
        lettered = any("$" in each.style.marker for each in self.series)
        some = self.series if lettered or len(self.series) > 1 else ()
        return [each.name for each in some if each.name]


def apart(
    name: str,
    points: Iterable[tuple[bool, float, float, float | None]],
    style: Style,
    other: str = "",
) -> list[Series]:
    """Returns the series of points that count, and hollow and without a line those that do not.

    `points`: whether each counts, its place, and its margin. `other`: names those that do not.
    """
    found, series = list(points), []
    for counts in (True, False):
        chosen = [each[1:] for each in found if each[0] is counts]
        if chosen:
            xs, ys, margins = zip(*chosen, strict=True)
            named = name if counts else other or f"{name}, not sound"
            look = style if counts else replace(style, line="", hollow=True)
            series.append(Series(named, xs, ys, look, margins=margins if any(margins) else ()))
    return series


def by_size(
    title: str,
    about: str,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    linear: bool,
    marked: Sequence[Marked] = (),
) -> Chart:
    """Returns a chart by the size of a batch, a load or a fleet.

    Both axes are linear from 0, so that what grows by a constant is straight; or, unless `linear`,
    both are logarithmic where the sizes are far apart, so that what is proportional is straight.
    """
    measured = [each for each in series if each.style.marker] or series
    xs = sorted({x for each in measured for x in each.xs})
    wide = not linear and xs[0] > 0 and xs[-1] >= _WIDE * xs[0]
    log = wide and all(y > 0 for each in series for y in each.ys)
    x = Axis(x_label, log, ticks=_ticks(xs, log))
    return Chart(title, about, x, Axis(y_label, log), series, marked)


def _ticks(xs: Sequence[float], log: bool) -> Sequence[float]:
    """Returns the sizes as ticks, none where their numbers would lie over each other."""
    apart = xs[-1] / 14
    pairs = list(pairwise(xs))
    if log:
        roomy = all(after >= 1.3 * before for before, after in pairs)
    else:
        roomy = all(after - before >= apart for before, after in pairs)
    return xs if roomy and len(xs) <= 10 else ()

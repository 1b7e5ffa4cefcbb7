"""Says what a chart shows: series of points on a pair of axes, and lines that mark values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

# Sizes, as of batches, that span more than this are crowded on a linear axis.
_WIDE: Final = 4.0
MOST_NAMED: Final = 16  # of the same kind, in a legend or below a title


@dataclass(frozen=True, slots=True)
class Series:
    """Marks that a line joins; with one x more than ys, bars between the xs; without ys, the share
    of the xs up to each place of the axis.

    `name`: empty where another chart of the picture explains the look. `line`, `marker`: in
    matplotlib's notation, empty for none. `color`: an index into `picture.COLORS`, which repeat.
    `hollow`: what does not count. `margins`: half the interval around each y, None for none.
    `letter`: is written on it.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    line: str = "-"
    marker: str = "o"
    color: int = 0
    hollow: bool = False
    margins: Sequence[float | None] = ()
    letter: str = ""


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
    at the lower end of one that is not `log`. `whole`: of sizes, whose ticks are whole numbers, and
    powers of two where it is `log`."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None
    whole: bool = False


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
        """The names that a legend has: none of a line that is alone and has no letter, and no more
        than can be read."""
        alone = len(self.series) == 1 and not self.series[0].letter
        names = [each.name for each in self.series if each.name]
        return [] if alone or len(self.series) > MOST_NAMED else names


def apart(points: Iterable[tuple[bool, float, float, float | None]], style: Series) -> list[Series]:
    """Returns the series of points that are sound, and hollow and without a line those that are
    not. `points`: whether each is, its place, and its margin. `style`: without points."""
    found, series = list(points), []
    unsound = replace(style, name=f"{style.name}, not sound", line="", hollow=True)
    for sound, look in ((True, style), (False, unsound)):
        chosen = [each[1:] for each in found if each[0] is sound]
        if chosen:
            xs, ys, margins = zip(*chosen, strict=True)
            series.append(replace(look, xs=xs, ys=ys, margins=margins if any(margins) else ()))
    return series


def remarked(points: Sequence[tuple[str, Collection[str]]], unit: str = "") -> Iterator[str]:
    """Yields the remarks on points, and which have each. `points`: names, and the remarks on it."""
    for remark in dict.fromkeys(each for _, own in points for each in own):
        names = [name for name, own in points if remark in own]
        some = f"{', '.join(names)}{unit}" if len(names) <= MOST_NAMED else f"{len(names)} points"
        yield f"{remark}: {'all' if len(names) == len(points) else some}"


def by_size(
    title: str, about: str, x: str, y: str, series: Sequence[Series], linear: bool, *marked: Marked
) -> Chart:
    """Returns a chart by the size of a batch, a load or a fleet. `x`, `y`: the labels of the axes.

    Both axes are linear from 0, so that what grows by a constant is straight; or, unless `linear`,
    both are logarithmic where the sizes are far apart, so that what is proportional is straight.
    """
    measured = [each for each in series if each.marker] or series
    sizes = sorted({size for each in measured for size in each.xs})
    wide = not linear and sizes[0] > 0 and sizes[-1] >= _WIDE * sizes[0]
    log = wide and all(value > 0 for each in series for value in each.ys)
    return Chart(title, about, Axis(x, log, whole=True), Axis(y, log), series, marked)


def bars_by_batch(
    title: str, about: str, label: str, amounts: dict[int, float], *marked: Marked
) -> Chart:
    """Returns a chart with a bar for each batch, from the smallest to the largest that occurs."""
    batches = range(min(amounts), max(amounts) + 1)
    edges = [batch - 0.5 for batch in (*batches, batches.stop)]
    x = Axis("sequences in the step", low=edges[0], high=edges[-1], whole=True)
    ys = [amounts.get(batch, 0.0) for batch in batches]
    return Chart(title, about, x, Axis(label), [Series("steps", edges, ys)], marked)

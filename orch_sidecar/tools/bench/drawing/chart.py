"""Charts: axes with series of points, and lines that mark values, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final
from xml.etree.ElementTree import Element

from orch_sidecar.tools.bench.drawing.elements import coordinate, element
from orch_sidecar.tools.bench.drawing.scales import Scale, number_text, tick_text

_WIDTH: Final = 480.0
_PLOT_HEIGHT: Final = 190.0
_LEFT: Final = 56.0
_RIGHT: Final = 14.0
_ABOVE: Final = 22.0  # the label of the y axis
_BELOW: Final = 40.0  # the ticks and the label of the x axis
_ROW: Final = 14.0  # of names of marked values
_LETTER: Final = 6.6  # the width of a character, at most, in the mean
_TICK: Final = 4.0
_DOT: Final = 3.5


class Look(StrEnum):
    """How the points of a series are drawn."""

    BARS = "bars"  # between edges, of which there is one more than values
    STEPS = "steps"  # the same, as a line
    LINE = "line"
    DOTS = "dots"
    HOLLOW = "hollow"  # dots that do not count


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one color. `margins`: half the interval around each y, None for none. `joined`:
    dots are joined by a line, in the order of their x."""

    name: str
    look: Look
    xs: Sequence[float]
    ys: Sequence[float]
    color: int = 0
    dashed: bool = False
    margins: Sequence[float | None] = ()
    joined: bool = False

    @property
    def tops(self) -> list[float]:
        """The largest value that is drawn at each point."""
        margins = self.margins or [None] * len(self.ys)
        return [y + (margin or 0.0) for y, margin in zip(self.ys, margins, strict=True)]


@dataclass(frozen=True, slots=True)
class Marked:
    """A value of an axis that a line marks. `is_bound`: it must not be exceeded.

    `name` stands above the line; of a horizontal one, at its end.
    """

    name: str
    at: float
    is_bound: bool = False
    horizontal: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Series on one pair of axes, with units in their labels. `about`: what it shows, in words."""

    title: str
    about: str
    x_label: str
    y_label: str
    x: Scale
    y: Scale
    series: Sequence[Series]
    marked: Sequence[Marked] = ()


def figure(chart: Chart, number: int) -> Element:
    """Draws a chart with its title and legend. `number`: of the figures of a page, for ids."""
    made = element(
        "figure",
        element("figcaption", element("h3", chart.title), element("p", chart.about)),
        _Drawing(chart, number).svg(),
    )
    if len(chart.series) > 1:
        made.append(element("ul", *(_legend(each) for each in chart.series), class_="legend"))
    return made


def _legend(series: Series) -> Element:
    sample = element(
        "svg", class_=f"sample s{series.color}", viewBox="0 0 24 10", aria_hidden="true"
    )
    if series.look in (Look.DOTS, Look.HOLLOW):
        sample.append(element("circle", cx=12.0, cy=5.0, r=_DOT, class_=series.look.value))
    elif series.look is Look.BARS:
        sample.append(element("rect", x=4.0, y=0.0, width=16.0, height=10.0, class_="bars"))
    else:
        sample.append(element("path", d="M0 5H24", class_=_line_class(series)))
    return element("li", sample, element("span", series.name))


def _line_class(series: Series) -> str:
    return "line dashed" if series.dashed else "line"


class _Drawing:
    """The geometry of one chart, in pixels from the top left corner."""

    def __init__(self, chart: Chart, number: int) -> None:
        self._chart = chart
        self._id = f"figure-{number}"
        self._rows = list(_rows_of_names(self._vertical(), self._x))
        rows = max((row + 1 for *_, row in self._rows), default=0)
        self._top = _ABOVE + _ROW * rows
        self._bottom = self._top + _PLOT_HEIGHT

    def svg(self) -> Element:
        chart, about = self._chart, f"{self._id}-title {self._id}-about"
        return element(
            "svg",
            element("title", chart.title, id=f"{self._id}-title"),
            element("desc", chart.about, id=f"{self._id}-about"),
            *self._axes(),
            *self._lines_across(),
            *(part for series in chart.series for part in self._series(series)),
            *self._marks(),
            class_="chart",
            role="img",
            aria_labelledby=about,
            viewBox=f"0 0 {coordinate(_WIDTH)} {coordinate(self._bottom + _BELOW)}",
        )

    def _x(self, value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * self._chart.x.share(value)

    def _y(self, value: float) -> float:
        return self._bottom - _PLOT_HEIGHT * self._chart.y.share(value)

    def _axes(self) -> Iterator[Element]:
        chart, right = self._chart, _WIDTH - _RIGHT
        yield element("text", chart.y_label, x=0.0, y=12.0, class_="label")
        for tick in chart.y.ticks:
            y = self._y(tick)
            yield element("path", d=_line((_LEFT, y), (right, y)), class_="grid")
            yield element(
                "text", tick_text(tick), x=_LEFT - 6, y=y + 4, class_="tick", text_anchor="end"
            )
        last = -_WIDTH
        for tick in chart.x.ticks:
            x, text = self._x(tick), tick_text(tick)
            yield element(
                "path", d=_line((x, self._bottom), (x, self._bottom + _TICK)), class_="axis"
            )
            half = _LETTER * (len(text) + 1) / 2
            middle = min(x, _WIDTH - half)  # the picture ends there
            if middle - half < last:
                continue  # its number would lie over the one before
            last = middle + half
            yield element(
                "text", text, x=middle, y=self._bottom + 16, class_="tick", text_anchor="middle"
            )
        yield element("path", d=_line((_LEFT, self._bottom), (right, self._bottom)), class_="axis")
        middle = (_LEFT + right) / 2
        yield element(
            "text", chart.x_label, x=middle, y=self._bottom + 34, class_="label",
            text_anchor="middle",
        )  # fmt: skip

    def _series(self, series: Series) -> Iterator[Element]:
        drawn = element("g", class_=f"s{series.color}")
        match series.look:
            case Look.BARS:
                self._add_bars(drawn, series)
            case Look.STEPS:
                drawn.append(element("path", d=self._steps(series), class_=_line_class(series)))
            case Look.LINE:
                points = [
                    (self._x(x), self._y(y)) for x, y in zip(series.xs, series.ys, strict=True)
                ]
                drawn.append(element("path", d=_line(*points), class_=_line_class(series)))
            case Look.DOTS | Look.HOLLOW:
                self._add_dots(drawn, series)
        yield drawn

    def _add_bars(self, drawn: Element, series: Series) -> None:
        unit = self._chart.x_label
        for (left, right), y in zip(pairwise(series.xs), series.ys, strict=True):
            if not y:
                continue
            at, top = self._x(left), self._y(y)
            text = f"{number_text(left)} to {number_text(right)} ({unit}): {number_text(y)}"
            width = max(0.5, self._x(right) - at - 0.7)
            drawn.append(
                element(
                    "rect", element("title", text), class_="bars",
                    x=at, y=top, width=width, height=self._bottom - top,
                )
            )  # fmt: skip

    def _steps(self, series: Series) -> str:
        parts = [f"M{coordinate(self._x(series.xs[0]))} {coordinate(self._y(series.ys[0]))}"]
        for right, y in zip(series.xs[1:], series.ys, strict=True):
            parts.append(f"V{coordinate(self._y(y))}H{coordinate(self._x(right))}")
        return "".join(parts)

    def _add_dots(self, drawn: Element, series: Series) -> None:
        if series.joined:
            points = [(self._x(x), self._y(y)) for x, y in zip(series.xs, series.ys, strict=True)]
            drawn.append(element("path", d=_line(*points), class_="joining"))
        margins = series.margins or [None] * len(series.ys)
        for x, y, margin in zip(series.xs, series.ys, margins, strict=True):
            at = self._x(x)
            text = f"{series.name}: {number_text(y)} at {number_text(x)} {self._chart.x_label}"
            if margin is not None:
                text += f" (95 % interval {number_text(y - margin)} to {number_text(y + margin)})"
                ends = self._y(max(y - margin, self._chart.y.low)), self._y(y + margin)
                drawn.append(element("path", d=_whisker(at, *ends), class_="line"))
            drawn.append(
                element(
                    "circle", element("title", text), cx=at, cy=self._y(y), r=_DOT,
                    class_=series.look.value,
                )
            )  # fmt: skip

    def _vertical(self) -> list[Marked]:
        return [each for each in self._chart.marked if not each.horizontal]

    def _lines_across(self) -> Iterator[Element]:
        for each in self._horizontal():
            ends = (_LEFT, self._y(each.at)), (_WIDTH - _RIGHT, self._y(each.at))
            yield element("path", d=_line(*ends), class_=_mark_class(each))

    def _horizontal(self) -> list[Marked]:
        return [each for each in self._chart.marked if each.horizontal]

    def _marks(self) -> Iterator[Element]:
        for each, _, row in self._rows:
            x, y = self._x(each.at), _ABOVE + _ROW * (row + 1)
            yield element("path", d=_line((x, y), (x, self._bottom)), class_=_mark_class(each))
        # Names lie over all lines.
        for each in self._horizontal():
            x, y = _WIDTH - _RIGHT, self._y(each.at) - 4
            yield element("text", each.name, x=x, y=y, class_="name", text_anchor="end")
        for each, middle, row in self._rows:
            y = _ABOVE + _ROW * row + 10
            yield element("text", each.name, x=middle, y=y, class_="name", text_anchor="middle")


def _mark_class(each: Marked) -> str:
    return "mark bound" if each.is_bound else "mark"


def _rows_of_names(
    marked: Sequence[Marked], x_of: Callable[[float], float]
) -> Iterator[tuple[Marked, float, int]]:
    """Yields each mark with the middle of its name and the row in which that has place."""
    ends: list[float] = []
    for each in sorted(marked, key=lambda mark: mark.at):
        half = _LETTER * (len(each.name) + 1) / 2
        middle = min(max(x_of(each.at), half), _WIDTH - half)
        row = next((n for n, end in enumerate(ends) if end <= middle - half), len(ends))
        ends[row : row + 1] = [middle + half]
        yield each, middle, row


def _line(*points: tuple[float, float]) -> str:
    return "M" + "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in points)


def _whisker(x: float, low: float, high: float) -> str:
    ends = "".join(f"M{coordinate(x - 4)} {coordinate(y)}h8" for y in (low, high))
    return f"{_line((x, low), (x, high))}{ends}"

"""Series of figures as a picture. Knows matplotlib, and nothing of facts.

matplotlib is loaded when something is drawn, and only its figures: no window, and nothing that
one picture leaves behind for the next. What tells series apart is seen in grey, too: line style,
marker, and the letter at a line's end that the legend repeats.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orch_sidecar.tools.facts.tables.files import write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

FORMATS: Final = (".png", ".svg")

# Okabe and Ito's colours, which the colour-blind can tell apart, from dark to light. Their
# yellow and sky blue are none for a line on white.
COLOURS: Final = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")

# A logarithmic axis where a linear one would press most of its values together.
_WIDE_X: Final = 4.0
_WIDE_Y: Final = 20.0
# More ticks than these run into each other.
_MOST_TICKS: Final = 10

_PANEL_INCHES: Final = (6.0, 4.2)
_LEGEND_LINE_INCHES: Final = 0.19
_TITLE_CHARACTERS_PER_PANEL: Final = 62
_DOTS_PER_INCH: Final = 150
_LETTER_POINTS: Final = 8.5
_LETTER_AWAY_POINTS: Final = 7.0


class PlotUnavailable(RuntimeError):
    """There is nothing to draw with; the message says what to install."""


class Kind(StrEnum):
    """What the points of a series are."""

    MEASURED = "measured"  # each point was measured: markers, and lines that lead the eye
    CURVE = "curve"  # values of a formula: a line alone


@dataclass(frozen=True, slots=True)
class Style:
    """How a series looks. `line`, `marker`: as matplotlib names them. `colour`: a place in
    COLOURS, from the start again past their end."""

    line: str = "-"
    marker: str = "o"
    colour: int = 0
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One line. `ranges`: least and most at each x, or nothing. `letter` stands at its end.

    Raises ValueError where these are not of one length, or there is no point.
    """

    name: str
    kind: Kind
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    style: Style = Style()
    ranges: tuple[tuple[float, float], ...] = ()
    letter: str = ""

    def __post_init__(self) -> None:
        if not self.xs or len(self.xs) != len(self.ys):
            raise ValueError(f"{self.name}: {len(self.xs)} x and {len(self.ys)} y make no series")
        if self.ranges and len(self.ranges) != len(self.xs):
            raise ValueError(f"{self.name}: {len(self.ranges)} ranges for {len(self.xs)} points")


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes, with units in their labels. At least one series."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]


def require(path: Path) -> None:
    """Raises ValueError for a name that no picture can have, PlotUnavailable without matplotlib."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path}: a plot is a {' or a '.join(FORMATS)} file")
    try:
        import matplotlib.figure  # noqa: F401 (whether it is there)
    except ImportError as error:
        raise PlotUnavailable(f"plots need matplotlib: pip install matplotlib ({error})") from error


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """A picture of at least one panel, side by side, as PNG or SVG by the suffix.

    Raises ValueError for another suffix or without a panel, PlotUnavailable, OSError.
    """
    require(path)
    if not panels or not all(panel.series for panel in panels):
        raise ValueError(f"{path}: there is nothing to draw")
    write(path, _rendered(path.suffix.lower().removeprefix("."), title, panels))


def _batch_text(x: float, place: int | None = None) -> str:
    """A tick of the x axis: batches are whole, means of them are not."""
    return f"{x:.3g}" if x < 1000 else f"{x:.0f}"


def _rendered(form: str, title: str, panels: Sequence[Panel]) -> bytes:
    import matplotlib
    from matplotlib.figure import Figure

    wide, high = _PANEL_INCHES
    legend_inches = _LEGEND_LINE_INCHES * max(len(panel.series) for panel in panels)
    figure = Figure(figsize=(wide * len(panels), high + legend_inches), layout="constrained")
    width = _TITLE_CHARACTERS_PER_PANEL * len(panels)
    figure.suptitle(textwrap.fill(title, width), fontsize=12, parse_math=False)
    letters = {
        axes: _draw_panel(axes, panel)
        for axes, panel in zip(_axes(figure, len(panels)), panels, strict=True)
    }
    # Where points are in the picture is known once everything has its place.
    figure.draw_without_rendering()
    for axes, of_panel in letters.items():
        _move_apart(axes, of_panel)
    out = io.BytesIO()
    # The same figures make the same bytes: no date in the picture, no random names in an SVG.
    with matplotlib.rc_context({"svg.hashsalt": "orch"}):
        metadata = {"Date": None} if form == "svg" else {}
        figure.savefig(out, format=form, dpi=_DOTS_PER_INCH, metadata=metadata)
    return out.getvalue()


def _axes(figure: Figure, count: int) -> list[Axes]:
    return list(figure.subplots(1, count, squeeze=False)[0])


def _draw_panel(axes: Axes, panel: Panel) -> list[Annotation]:
    """Draws a panel. The letters at the lines' ends."""
    letters = [letter for series in panel.series for letter in _draw_series(axes, series)]
    _scale_x(axes, panel.series)
    _scale_y(axes, panel.series)
    axes.set_title(panel.title, fontsize=11, parse_math=False)
    axes.set_xlabel(panel.x_label, parse_math=False)
    axes.set_ylabel(panel.y_label, parse_math=False)
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    legend = axes.legend(
        loc="upper left",
        bbox_to_anchor=(-0.02, -0.16),
        borderaxespad=0.0,
        frameon=False,
        fontsize=8.5,
        handlelength=4.2,
    )
    for entry in legend.get_texts():
        entry.set_parse_math(False)
    return letters


def _draw_series(axes: Axes, series: Series) -> list[Annotation]:
    style = series.style
    colour = COLOURS[style.colour % len(COLOURS)]
    measured = series.kind is Kind.MEASURED
    axes.plot(
        series.xs,
        series.ys,
        label=f"{series.letter}   {series.name}" if series.letter else series.name,
        color=colour,
        linestyle=style.line,
        linewidth=1.5,
        marker=style.marker if measured else "",
        markersize=5.5,
        markerfacecolor="white" if style.hollow else colour,
    )
    if series.ranges:
        below = [y - least for y, (least, _) in zip(series.ys, series.ranges, strict=True)]
        above = [most - y for y, (_, most) in zip(series.ys, series.ranges, strict=True)]
        axes.errorbar(
            series.xs, series.ys, yerr=[below, above], fmt="none", ecolor=colour, capsize=3
        )
    if not series.letter:
        return []
    letter = axes.annotate(
        series.letter,
        (series.xs[-1], series.ys[-1]),
        xytext=(_LETTER_AWAY_POINTS, 0),
        textcoords="offset points",
        va="center",
        fontsize=_LETTER_POINTS,
        color=colour,
        parse_math=False,
    )
    return [letter]


def _move_apart(axes: Axes, letters: Sequence[Annotation]) -> None:
    """Moves letters that would cover each other, where lines end at one x."""
    points_per_dot = 72 / axes.figure.dpi
    top, high = axes.bbox.y1 * points_per_dot, axes.bbox.height * points_per_dot
    heights = {
        letter: float(axes.transData.transform(letter.xy)[1]) * points_per_dot for letter in letters
    }
    for x in {letter.xy[0] for letter in letters}:
        column = sorted((each for each in letters if each.xy[0] == x), key=heights.__getitem__)
        # Letters that are too many for the axes stand closer, rather than below them.
        gap = min(1.1 * _LETTER_POINTS, high / len(column))
        moved = apart([heights[letter] for letter in column], gap, top)
        for letter, height in zip(column, moved, strict=True):
            letter.xyann = (_LETTER_AWAY_POINTS, height - heights[letter])


def apart(heights: Sequence[float], gap: float, top: float) -> list[float]:
    """Ascending heights, moved up where one is less than a gap above the one below.

    What would end above the top is pushed down, and pushes down what is below it.
    """
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + gap) if moved else height)
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], top)
        top = moved[index] - gap
    return moved


def _scale_x(axes: Axes, shown: Sequence[Series]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    measured = [series for series in shown if series.kind is Kind.MEASURED] or shown
    values = sorted({x for series in measured for x in series.xs})
    if _is_wide([x for series in shown for x in series.xs], _WIDE_X):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(_batch_text))
    if len(values) <= _MOST_TICKS:
        axes.xaxis.set_major_locator(FixedLocator(values))
        axes.xaxis.set_major_formatter(FuncFormatter(_batch_text))
    # Room for the letters at the lines' ends.
    axes.margins(x=0.08)


def _scale_y(axes: Axes, shown: Sequence[Series]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    if _is_wide([y for series in shown for y in series.ys], _WIDE_Y):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    else:
        axes.set_ylim(bottom=0)


def _is_wide(values: Sequence[float], factor: float) -> bool:
    return min(values) > 0 and max(values) / min(values) >= factor

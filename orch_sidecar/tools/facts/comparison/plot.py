"""Draws series of figures with matplotlib; knows nothing about facts.

matplotlib is loaded when something is drawn, and only its figures: no window, and no state that
one plot leaves for the next. Series differ without colors, too: by line style, marker, and the
letter at the end of a line, which the legend repeats.
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

# The palette of Okabe and Ito, which suits color-blind readers, from dark to light, without its
# yellow and sky blue: they are too light for a line on white.
COLORS: Final = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")

# An axis is logarithmic from this ratio of its largest to its smallest value.
_WIDE_X: Final = 4.0
_WIDE_Y: Final = 20.0
# More ticks would overlap.
_MAX_TICKS: Final = 10

_PANEL_INCHES: Final = (6.0, 4.2)
_LEGEND_LINE_INCHES: Final = 0.19
_TITLE_CHARACTERS_PER_PANEL: Final = 62
_DOTS_PER_INCH: Final = 150
_LETTER_POINTS: Final = 8.5
_LETTER_AWAY_POINTS: Final = 7.0


class PlotUnavailable(RuntimeError):
    """matplotlib is missing; the message names what to install."""


class Kind(StrEnum):
    """What the points of a series are."""

    MEASURED = "measured"  # markers, connected by lines
    CURVE = "curve"  # values of a formula: a line without markers


@dataclass(frozen=True, slots=True)
class Style:
    """How a series looks. `line`, `marker`: in the notation of matplotlib.

    `color`: an index into COLORS, which repeat.
    """

    line: str = "-"
    marker: str = "o"
    color: int = 0
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One line. `ranges`: minimum and maximum at each x, or empty. `letter` is at its end.

    Raises ValueError for sequences of different lengths, and without a point.
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
            raise ValueError(
                f"{self.name}: {len(self.xs)} x and {len(self.ys)} y must be equally many, and some"
            )
        if self.ranges and len(self.ranges) != len(self.xs):
            raise ValueError(
                f"{self.name}: {len(self.ranges)} ranges must be as many as {len(self.xs)} points"
            )


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes, with units in their labels. At least one series."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]


def require(path: Path) -> None:
    """Raises ValueError for a suffix that is not in FORMATS, PlotUnavailable without matplotlib."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path}: the suffix of a plot must be {' or '.join(FORMATS)}")
    try:
        import matplotlib.figure  # noqa: F401 (is it installed?)
    except ImportError as error:
        raise PlotUnavailable(f"plots need matplotlib: pip install matplotlib ({error})") from error


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draws at least one panel, side by side, as PNG or SVG by the suffix.

    Raises ValueError for another suffix or without a panel, PlotUnavailable, OSError.
    """
    require(path)
    if not panels or not all(panel.series for panel in panels):
        raise ValueError(f"{path}: a plot needs at least one panel, each with a series")
    write(path, _rendered(path.suffix.lower().removeprefix("."), title, panels))


def _batch_text(x: float, place: int | None = None) -> str:
    """Formats a tick of the x axis: batches are integers, means of them are not."""
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
    # The layout determines where points are.
    figure.draw_without_rendering()
    for axes, of_panel in letters.items():
        _move_apart(axes, of_panel)
    out = io.BytesIO()
    # Equal figures make equal bytes: no date, and no random ids in an SVG.
    with matplotlib.rc_context({"svg.hashsalt": "orch"}):
        metadata = {"Date": None} if form == "svg" else {}
        figure.savefig(out, format=form, dpi=_DOTS_PER_INCH, metadata=metadata)
    return out.getvalue()


def _axes(figure: Figure, count: int) -> list[Axes]:
    return list(figure.subplots(1, count, squeeze=False)[0])


def _draw_panel(axes: Axes, panel: Panel) -> list[Annotation]:
    """Draws a panel, and returns the letters at the lines' ends."""
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
    color = COLORS[style.color % len(COLORS)]
    measured = series.kind is Kind.MEASURED
    axes.plot(
        series.xs,
        series.ys,
        label=f"{series.letter}   {series.name}" if series.letter else series.name,
        color=color,
        linestyle=style.line,
        linewidth=1.5,
        marker=style.marker if measured else "",
        markersize=5.5,
        markerfacecolor="white" if style.hollow else color,
    )
    if series.ranges:
        below = [y - least for y, (least, _) in zip(series.ys, series.ranges, strict=True)]
        above = [most - y for y, (_, most) in zip(series.ys, series.ranges, strict=True)]
        axes.errorbar(
            series.xs, series.ys, yerr=[below, above], fmt="none", ecolor=color, capsize=3
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
        color=color,
        parse_math=False,
    )
    return [letter]


def _move_apart(axes: Axes, letters: Sequence[Annotation]) -> None:
    """Moves letters that would overlap where lines end at the same x."""
    points_per_dot = 72 / axes.figure.dpi
    top, high = axes.bbox.y1 * points_per_dot, axes.bbox.height * points_per_dot
    heights = {
        letter: float(axes.transData.transform(letter.xy)[1]) * points_per_dot for letter in letters
    }
    for x in {letter.xy[0] for letter in letters}:
        column = sorted((each for each in letters if each.xy[0] == x), key=heights.__getitem__)
        # Too many letters for the height of the axes overlap rather than leave them.
        gap = min(1.1 * _LETTER_POINTS, high / len(column))
        moved = apart([heights[letter] for letter in column], gap, top)
        for letter, height in zip(column, moved, strict=True):
            letter.xyann = (_LETTER_AWAY_POINTS, height - heights[letter])


def apart(heights: Sequence[float], gap: float, top: float) -> list[float]:
    """Raises ascending heights that are less than a gap above the one below.

    A height that would end above the top is lowered, and with it those below.
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
    if len(values) <= _MAX_TICKS:
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

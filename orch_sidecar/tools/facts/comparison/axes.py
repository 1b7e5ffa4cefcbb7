"""Draws series on the axes of matplotlib, and chooses their scales; knows nothing about facts.

Series differ without colors, too: by line style, marker, and their letter.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from orch_sidecar.tools.facts.comparison.series import Kind, Panel, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The palette of Okabe and Ito, which suits color-blind readers, from dark to light, without its
# yellow and sky blue: they are too light for a line on white.
COLORS: Final = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
GRID_COLOR: Final = "#DDDDDD"

# An axis is logarithmic from this ratio of its largest to its smallest value.
_WIDE_X: Final = 4.0
_WIDE_Y: Final = 20.0
# More ticks, or ticks closer than these, would overlap: a ratio, and a share of the axis.
_MAX_TICKS: Final = 10
_APART_RATIO: Final = 1.3
_APART_SHARE: Final = 0.06
# Up to this ratio a logarithmic axis has room for ticks between the powers of ten: texts beside
# each other need more room than those above each other.
_ROOM_X: Final = 100.0
_ROOM_Y: Final = 10_000.0


def draw_panel(axes: Axes, panel: Panel) -> None:
    """Draws a panel on its axes, without a legend."""
    for series in panel.series:
        _draw_series(axes, series)
    is_log = _scale_x(axes, panel.series)
    if panel.same_scale and is_log:
        _scale_by_powers_of_2(axes, x=False)
    else:
        scale_figures(axes, [y for series in panel.series for y in series.ys])
    axes.set_title(panel.title, fontsize=11, parse_math=False)
    axes.set_xlabel(panel.x_label, parse_math=False)
    axes.set_ylabel(panel.y_label, parse_math=False)
    axes.grid(True, which="major", color=GRID_COLOR, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def color_of(series_color: int) -> str:
    """Returns the color of an index, which may be above their number."""
    return COLORS[series_color % len(COLORS)]


def _draw_series(axes: Axes, series: Series) -> None:
    style, color = series.style, color_of(series.style.color)
    axes.plot(
        series.xs,
        series.ys,
        label=series.name,
        color=color,
        linestyle=style.line,
        linewidth=1.5,
        marker=style.marker if series.kind is Kind.MEASURED else "",
        markersize=5.5,
        markerfacecolor="white" if style.hollow else color,
    )


def _scale_x(axes: Axes, shown: Sequence[Series]) -> bool:
    """Scales x, and returns whether it is logarithmic."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    measured = [series for series in shown if series.kind is Kind.MEASURED] or shown
    values = sorted({x for series in measured for x in series.xs})
    log = _is_wide([x for series in shown for x in series.xs], _WIDE_X)
    if log:
        _scale_by_powers_of_2(axes, x=True)
    if len(values) <= _MAX_TICKS and _far_apart(values, log=log):
        axes.xaxis.set_major_locator(FixedLocator(values))
    elif not log:
        axes.xaxis.set_major_locator(MaxNLocator(_MAX_TICKS - 2))
    axes.xaxis.set_major_formatter(FuncFormatter(_batch_text))
    return log


def _scale_by_powers_of_2(axes: Axes, *, x: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    (axes.set_xscale if x else axes.set_yscale)("log", base=2)
    axis = axes.xaxis if x else axes.yaxis
    axis.set_major_locator(LogLocator(base=2, numticks=_MAX_TICKS))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(_batch_text))


def _far_apart(values: Sequence[float], *, log: bool) -> bool:
    pairs = itertools.pairwise(values)
    if log:
        return all(after >= _APART_RATIO * before for before, after in pairs)
    least = _APART_SHARE * (values[-1] - values[0])
    return all(after - before >= least for before, after in pairs)


def _batch_text(x: float, place: int | None = None) -> str:
    """Formats a tick of the x axis: batches are integers, means of them are not."""
    return f"{x:.3g}" if x < 1000 else f"{x:.0f}"


def scale_figures(axes: Axes, values: Sequence[float], *, x: bool = False) -> None:
    """Makes the axis of figures, y or x, begin at 0, or logarithmic where they are far apart."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

    axis = axes.xaxis if x else axes.yaxis
    if _is_wide(values, _WIDE_Y):
        (axes.set_xscale if x else axes.set_yscale)("log")
        few = max(values) / min(values) < (_ROOM_X if x else _ROOM_Y)
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        axis.set_minor_locator(NullLocator())
    elif x:
        axes.set_xlim(left=0)
        axis.set_major_locator(MaxNLocator(5))
    else:
        axes.set_ylim(bottom=0)
    if max(values) >= 1000:
        axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    elif _is_wide(values, _WIDE_Y):
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _is_wide(values: Sequence[float], factor: float) -> bool:
    return min(values) > 0 and max(values) / min(values) >= factor


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

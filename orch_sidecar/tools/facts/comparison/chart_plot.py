"""Draws a chart: a row for each set, and its curves by batch below.

Lengths are in inches from the top left corner, and lines of text are wrapped by their measured
width, so that no text lies over another, however many sets there are and however long their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orch_sidecar.tools.facts.comparison.axes import (
    GRID_COLOR,
    apart,
    color_of,
    draw_panel,
    scale_figures,
)
from orch_sidecar.tools.facts.comparison.chart import Chart, ChartRow
from orch_sidecar.tools.facts.comparison.plot import require, save
from orch_sidecar.tools.facts.comparison.report import batch_text
from orch_sidecar.tools.facts.comparison.series import Panel
from orch_sidecar.tools.facts.comparison.text_width import wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH: Final = 13.6
_MARGIN: Final = 0.35
_TITLE_POINTS: Final = 12
_POINTS: Final = 9.0
_POINTS_PER_INCH: Final = 72
_TITLE_LINE: Final = 0.22
_LINE: Final = 0.17
_LANE: Final = 0.2  # of one batch
_ROW_PADDING: Final = 0.2
_HEADER: Final = 0.3
_TICKS: Final = 0.55  # from the rows to the panels

# Columns of the rows: from, to. Without TTFT the throughput has its place, too.
_LETTER_X: Final = 0.5
_KEY: Final = (0.65, 1.1)
_NAME: Final = (1.25, 5.15)
_BATCH_END: Final = 5.75
_SPEED: Final = (5.95, 9.1)
_SPEED_END: Final = 9.85
_TTFT: Final = (10.1, 12.15)
_TTFT_END: Final = 13.35
_SPEED_ALONE: Final = (5.95, 12.5)
_SPEED_ALONE_END: Final = 13.35

_PANEL_TITLE: Final = 0.4
_PANEL_HEIGHT: Final = 3.4
_PANEL_FOOT: Final = 0.6
_PANEL_X: Final = ((1.05, 6.15), (7.85, 12.95))
_LETTER_LINE: Final = 0.16
_LETTERS_AWAY: Final = 0.22

_SHADE: Final = "#F4F4F4"
_QUIET: Final = "#555555"


@dataclass(frozen=True, slots=True)
class _Row:
    """A row in its place: from `top`, below the header of the rows, on."""

    row: ChartRow
    lines: tuple[str, ...]
    top: float
    height: float

    def lane(self, number: int) -> float:
        """Returns the middle of the lane of a point, below the header of the rows."""
        used = _LANE * len(self.row.points)
        return self.top + (self.height - used) / 2 + _LANE * (number + 0.5)


def draw_chart(path: Path, chart: Chart) -> None:
    """Draws a chart as PNG or SVG by the suffix. Raises what `plot.require` raises, OSError."""
    require(path)
    save(path, figure_of(chart))


def figure_of(chart: Chart) -> Figure:
    """Returns the figure of a chart."""
    from matplotlib.figure import Figure

    title = wrapped(chart.title, _WIDTH - 2 * _MARGIN, _TITLE_POINTS)
    rows = _placed(chart.rows)
    header = _MARGIN + _TITLE_LINE * len(title) + 0.15
    top = header + _HEADER
    bottom = top + rows[-1].top + rows[-1].height
    letters = max((len(panel.series) for panel in chart.panels), default=0)
    panel_height = max(_PANEL_HEIGHT, _LETTER_LINE * letters)
    panels_top = bottom + _TICKS + _PANEL_TITLE
    height = panels_top + panel_height + _PANEL_FOOT if chart.panels else bottom + _TICKS
    page = _Page(Figure(figsize=(_WIDTH, height)), height)
    for number, line in enumerate(title):
        page.text(_MARGIN, _MARGIN + _TITLE_LINE * (number + 0.5), line, fontsize=_TITLE_POINTS)
    _draw_rows(page, rows, header, top, bottom)
    for panel, (left, right) in zip(chart.panels, _PANEL_X, strict=False):
        axes = page.axes(left, panels_top, right, panels_top + panel_height)
        draw_panel(axes, panel)
        _add_letters(axes, panel)
    return page.figure


@dataclass(frozen=True, slots=True)
class _Page:
    """A figure on which places are inches from the top left corner."""

    figure: Figure
    height: float

    def axes(self, left: float, top: float, right: float, bottom: float) -> Axes:
        """Adds axes between these edges."""
        size = ((right - left) / _WIDTH, (bottom - top) / self.height)
        return self.figure.add_axes((left / _WIDTH, 1 - bottom / self.height, *size))

    def text(self, x: float, y: float, text: str, **style: Any) -> None:
        """Adds a line of text, whose middle is at y."""
        merged: dict[str, Any] = {"va": "center", "fontsize": _POINTS, "parse_math": False} | style
        self.figure.text(x / _WIDTH, 1 - y / self.height, text, **merged)

    def key(self, y: float, row: ChartRow) -> None:
        """Adds a sample of the line and the marker of a set."""
        from matplotlib.lines import Line2D

        style, height = row.style, 1 - y / self.height
        xs = (_KEY[0] / _WIDTH, sum(_KEY) / 2 / _WIDTH, _KEY[1] / _WIDTH)
        sample = Line2D(
            xs,
            3 * [height],
            color=color_of(style.color),
            marker=style.marker,
            markevery=[1],
            markersize=5.5,
            linewidth=1.5,
            transform=self.figure.transFigure,
        )
        sample.set(linestyle=style.line)
        self.figure.add_artist(sample)


def _placed(rows: Sequence[ChartRow]) -> list[_Row]:
    placed: list[_Row] = []
    top = 0.0
    for row in rows:
        lines = tuple(wrapped(row.name, _NAME[1] - _NAME[0], _POINTS))
        height = max(_LINE * len(lines), _LANE * len(row.points)) + _ROW_PADDING
        placed.append(_Row(row, lines, top, height))
        top += height
    return placed


def _draw_rows(page: _Page, rows: Sequence[_Row], header: float, top: float, bottom: float) -> None:
    points = [point for each in rows for point in each.row.points]
    with_ttft = any((each.ttft_p50_ms, each.ttft_p95_ms) != (None, None) for each in points)
    with_range = any(each.rows > 1 for each in points)
    shades = page.axes(_MARGIN, top, _WIDTH - 0.2, bottom)
    shades.set(ylim=(bottom - top, 0), zorder=-1)
    shades.set_axis_off()
    for each in rows[::2]:
        shades.axhspan(each.top, each.top + each.height, color=_SHADE, linewidth=0)
    for each in rows:
        _draw_names(page, each, top)
    speed_x, speed_end = (_SPEED, _SPEED_END) if with_ttft else (_SPEED_ALONE, _SPEED_ALONE_END)
    middle = header + _HEADER / 2
    page.text(_BATCH_END, middle, "mean batch", ha="right", color=_QUIET)
    ranges = " (median, minimum to maximum)" if with_range else ""
    page.text(speed_x[0], middle, f"generated tokens/s{ranges}", color=_QUIET)
    axes = _figures_axes(page, speed_x, top, bottom)
    _draw_speeds(page, axes, rows, top, speed_end)
    if with_ttft:
        page.text(_TTFT[0], middle, "TTFT in ms: p50 (filled), p95 (hollow)", color=_QUIET)
        _draw_ttfts(page, _figures_axes(page, _TTFT, top, bottom), rows, top)


def _draw_names(page: _Page, each: _Row, top: float) -> None:
    middle = top + each.top + each.height / 2
    color = color_of(each.row.style.color)
    page.text(_LETTER_X, middle, each.row.letter, color=color, fontweight="bold", ha="center")
    page.key(middle, each.row)
    first = middle - _LINE * (len(each.lines) - 1) / 2
    for number, line in enumerate(each.lines):
        page.text(_NAME[0], first + _LINE * number, line)
    for number, point in enumerate(each.row.points):
        y = top + each.lane(number)
        page.text(_BATCH_END, y, batch_text(point.batch_mean), ha="right", color=_QUIET)


def _figures_axes(page: _Page, x: tuple[float, float], top: float, bottom: float) -> Axes:
    """Returns axes over all rows, on which y is inches below the header of the rows."""
    axes = page.axes(x[0], top, x[1], bottom)
    axes.set(ylim=(bottom - top, 0), yticks=[], facecolor="none")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(True, axis="x", color=GRID_COLOR, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", labelsize=8)
    axes.margins(x=0.06)
    return axes


def _draw_speeds(page: _Page, axes: Axes, rows: Sequence[_Row], top: float, end: float) -> None:
    values = []
    for each in rows:
        style, color = each.row.style, color_of(each.row.style.color)
        for number, point in enumerate(each.row.points):
            y, figures = each.lane(number), point.tokens_per_s
            axes.plot((figures.least, figures.most), (y, y), color=color, linewidth=1.5)
            axes.plot(figures.median, y, color=color, marker=style.marker, markersize=5.5)
            page.text(end, top + y, _number(figures.median), ha="right")
            values += [figures.least, figures.most]
    scale_figures(axes, values, x=True)


def _draw_ttfts(page: _Page, axes: Axes, rows: Sequence[_Row], top: float) -> None:
    values = []
    for each in rows:
        style, color = each.row.style, color_of(each.row.style.color)
        for number, point in enumerate(each.row.points):
            times = {"p50": point.ttft_p50_ms, "p95": point.ttft_p95_ms}
            known = [time for time in times.values() if time is not None]
            if not known:
                continue
            y = each.lane(number)
            axes.plot(known, len(known) * [y], color=color, linewidth=1.0)
            for percentile, time in times.items():
                if time is not None:
                    face = color if percentile == "p50" else "white"
                    axes.plot(
                        time,
                        y,
                        color=color,
                        marker=style.marker,
                        markersize=5.5,
                        markerfacecolor=face,
                    )
            texts = ["-" if time is None else _number(time) for time in times.values()]
            page.text(_TTFT_END, top + y, " / ".join(texts), ha="right")
            values += known
    scale_figures(axes, values, x=True)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _add_letters(axes: Axes, panel: Panel) -> None:
    """Adds the letters of lines right of the axes, each connected with the end of its line."""
    lettered = [series for series in panel.series if series.letter]
    axes.margins(x=0.04)
    axes.get_xlim(), axes.get_ylim()  # determines the limits, which transData uses
    ends = {series: (series.xs[-1], series.ys[-1]) for series in lettered}
    inches_per_dot = 1 / axes.figure.dpi
    bottom, high = axes.bbox.y0, axes.bbox.height * inches_per_dot
    heights = {
        series: (float(axes.transData.transform(end)[1]) - bottom) * inches_per_dot
        for series, end in ends.items()
    }
    ordered = sorted(lettered, key=heights.__getitem__)
    # Half a line of room at the bottom, too.
    lowest = [max(heights[series], _LETTER_LINE / 2) for series in ordered]
    moved = apart(lowest, _LETTER_LINE, high - _LETTER_LINE / 2)
    right = 1 + _LETTERS_AWAY / (axes.bbox.width * inches_per_dot)
    for series, height in zip(ordered, moved, strict=True):
        color = color_of(series.style.color)
        axes.annotate(
            series.letter,
            ends[series],
            xytext=(right, height / high),
            textcoords="axes fraction",
            va="center",
            color=color,
            fontsize=_POINTS,
            fontweight="bold",
            annotation_clip=False,
            parse_math=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.5, "alpha": 0.5},
        )

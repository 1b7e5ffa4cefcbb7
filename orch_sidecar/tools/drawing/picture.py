"""Draws charts with matplotlib: as a PNG or SVG of all of them, or as an element of a page.

matplotlib is loaded when something is drawn, and only its figures: no window, and no state that
one picture leaves for the next. Equal charts make equal bytes.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree.ElementTree import Element, fromstring

from orch_sidecar.tools.drawing.chart import Axis, Chart, Look, Marked, Series
from orch_sidecar.tools.drawing.texts import element, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: Final = (".png", ".svg")

# The palette of Okabe and Ito, which suits color-blind readers, without the colors that are too
# light for a line on white.
COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#000001")
_INK, _SOFT, _RULE, _PAPER, _BOUND = "#1a1d21", "#5b6470", "#d9dde2", "#fffffe", "#b3261e"
# A page has these colors as variables, so that they follow its light or dark scheme.
_VARIABLES: Final = {
    **{color: f"var(--s{number})" for number, color in enumerate(COLORS)},
    _INK: "var(--ink)",
    _SOFT: "var(--soft)",
    _RULE: "var(--rule)",
    _PAPER: "var(--paper)",
    _BOUND: "var(--bad)",
}

# Inches of one chart, without its legend; points of its texts, which a phone shows at 4/5.
_SIZE: Final = (4.0, 2.3)
_BESIDE: Final = 1.2  # from the left edge of a chart to the next, in widths of a chart
_POINTS: Final = 9.0
_DOTS_PER_INCH: Final = 150
# Before the name of a series: matplotlib would not name one that begins with `_`.
_NAMED: Final = "series "
# Slanted names that are nearer, as a share of the axis, would lie over each other.
_NAME_SHARE: Final = 0.05
_LEGEND_CHARACTERS: Final = 58  # of a line as wide as a chart
_ABOUT_CHARACTERS: Final = 66
_MOST_BARS: Final = 40  # of a histogram


class PlotUnavailable(ValueError):
    """matplotlib is missing; the message names what to install."""


def require(path: Path | None = None) -> None:
    """Raises ValueError for a suffix that is not in FORMATS, PlotUnavailable without matplotlib."""
    if path is not None and path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path}: the suffix of a plot must be {' or '.join(FORMATS)}")
    try:
        import matplotlib.figure  # noqa: F401 (is it installed?)
    except ImportError as error:
        raise PlotUnavailable(
            f"pictures need matplotlib: pip install matplotlib ({error})"
        ) from error


def drawn(suffix: str, title: str, charts: Sequence[Chart]) -> bytes:
    """Draws charts beside and below each other, as PNG or SVG by the suffix, which `require` has
    accepted. Raises ValueError without a chart, PlotUnavailable."""
    if not charts:
        raise ValueError("a plot needs at least one chart, and there is nothing to draw")
    columns = len(charts) if len(charts) <= 3 else 2
    figure = _empty()
    # In heights of a chart, downwards. What lies outside of the figure is saved with it.
    down = 0.0
    for first in range(0, len(charts), columns):
        row = charts[first : first + columns]
        down += max(_head(chart) for chart in row)
        for column, chart in enumerate(row):
            axes = figure.add_axes((_BESIDE * column, -down, 1.0, 1.0))
            _draw(axes, chart)
            _title(axes, chart)
        down += max(_foot(chart) for chart in row)
    middle = (_BESIDE * (columns - 1) + 1) / 2
    words = _wrapped(title, round(1.15 * _LEGEND_CHARACTERS * columns))
    look: dict[str, Any] = {"ha": "center", "fontsize": _POINTS + 2, "parse_math": False}
    figure.text(middle, 1.05, words, **look)
    return _saved(figure, suffix.lower().removeprefix("."), "orch")


def _head(chart: Chart) -> float:
    """Returns the place that a chart takes with its title and words, in heights of a chart."""
    return (0.25 + 0.15 * len(textwrap.wrap(chart.about, _ABOUT_CHARACTERS))) / _SIZE[1]


def _foot(chart: Chart) -> float:
    """Returns the place that its axes and their names take, in heights of a chart."""
    lines = sum(len(textwrap.wrap(name, _LEGEND_CHARACTERS)) for name in chart.explained)
    return 1.0 + (0.6 + 0.16 * lines) / _SIZE[1]


def _title(axes: Axes, chart: Chart) -> None:
    lines = len(textwrap.wrap(chart.about, _ABOUT_CHARACTERS))
    axes.text(
        0.5, 1.02, _wrapped(chart.about, _ABOUT_CHARACTERS), transform=axes.transAxes, ha="center",
        va="bottom", fontsize=_POINTS - 2, color=_SOFT, parse_math=False,
    )  # fmt: skip
    heading = _wrapped(chart.title, 44)
    axes.set_title(heading, fontsize=_POINTS + 1, pad=5 + 10 * lines, parse_math=False)


def element_of(chart: Chart, number: int) -> Element:
    """Returns the SVG of a chart for a page, with its title and words for who cannot see it.

    `number`: of the pictures of the page, which makes its ids its own. Its texts are texts.
    """
    title, about = f"picture-{number}-title", f"picture-{number}-about"
    figure = _empty()
    _draw(figure.add_axes((0.0, 0.0, 1.0, 1.0)), chart)
    drawing = _saved(figure, "svg", f"orch-{number}", page=True)
    root = fromstring(drawing)  # noqa: S314 (matplotlib has just written it)
    _make_part_of_page(root)
    del root.attrib["width"], root.attrib["height"]
    root.attrib |= {"class": "chart", "role": "img", "aria-labelledby": f"{title} {about}"}
    names = element("title", chart.title, id=title), element("desc", chart.about, id=about)
    for place, each in enumerate(names):
        root.insert(place, each)
    return root


def _make_part_of_page(each: Element) -> None:
    """Takes from an SVG what only a file of its own has, and gives it the colors of the page."""
    each.tag = each.tag.rpartition("}")[2]
    found = {name.rpartition("}")[2]: value for name, value in each.attrib.items()}
    if each.tag == "g":
        found.pop("id", None)  # those of groups are equal in all pictures; others have their salt
    for color, variable in _VARIABLES.items():
        found = {name: value.replace(color, variable) for name, value in found.items()}
    each.attrib = found
    for child in list(each):
        _make_part_of_page(child)
        if child.tag in ("metadata", "style"):
            each.remove(child)


def _empty() -> Figure:
    """Returns a figure of the size of one chart. Raises PlotUnavailable."""
    require()
    from matplotlib.figure import Figure

    return Figure(figsize=_SIZE)


def _saved(figure: Figure, form: str, salt: str, *, page: bool = False) -> bytes:
    import matplotlib

    out = io.BytesIO()
    # No date, and no random ids in an SVG.
    with matplotlib.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none" if page else "path"}):
        figure.savefig(
            out, format=form, dpi=_DOTS_PER_INCH, transparent=page, bbox_inches="tight",
            pad_inches=0.02 if page else 0.15, metadata={"Date": None} if form == "svg" else {},
        )  # fmt: skip
    return out.getvalue()


def _draw(axes: Axes, chart: Chart) -> None:
    """Draws a chart on its axes: the only place where one is drawn."""
    for each in chart.series:
        _add_series(axes, each, chart.x)
    for mark in chart.marked:
        draw = axes.axhline if mark.horizontal else axes.axvline
        line, color = ("--", _BOUND) if mark.is_bound else ("-", _INK)
        draw(mark.at, linestyle=line, color=color, linewidth=1.1)
    _scale(axes, chart.x, x=True)
    _scale(axes, chart.y, x=False)
    axes.set_xlabel(chart.x.label, color=_SOFT, fontsize=_POINTS, parse_math=False)
    axes.set_ylabel(chart.y.label, color=_SOFT, fontsize=_POINTS, parse_math=False)
    axes.grid(True, which="major", color=_RULE, linewidth=0.7)
    axes.tick_params(colors=_SOFT, labelsize=_POINTS)
    axes.set_axisbelow(True)
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_SOFT)
    _name_marks(axes, chart.marked)
    if chart.explained:
        samples, names = axes.get_legend_handles_labels()
        legend = axes.legend(
            samples, [str(number) for number in range(len(names))],
            loc="upper left", bbox_to_anchor=(-0.02, -0.22), borderaxespad=0.0, frameon=False,
            fontsize=_POINTS - 0.5, handlelength=3.2,
        )  # fmt: skip
        # Names are no formulas, and may begin with any character.
        for entry, name in zip(legend.get_texts(), names, strict=True):
            words = _wrapped(str(name).removeprefix(_NAMED), _LEGEND_CHARACTERS)
            entry.set(text=words, parse_math=False, color=_INK)


def _add_series(axes: Axes, series: Series, x: Axis) -> None:
    import numpy as np  # comes with matplotlib

    style, label = series.style, f"{_NAMED}{series.name}" if series.name else ""
    color = COLORS[style.color % len(COLORS)]
    bars: dict[str, Any] = {"alpha": 0.8, "edgecolor": _PAPER, "linewidth": 0.5}
    if series.look is Look.COUNTS:
        low, high = x.low or 0.0, x.high or 1.0
        count, values = min(_MOST_BARS, 5 + len(series.xs) // 3), np.clip(series.xs, low, high)
        edges = (np.geomspace if x.log else np.linspace)(low, high, count + 1)
        axes.hist(values, list(edges), color=color, label=label, **bars)
    elif series.look is Look.SHARES:
        axes.ecdf(series.xs, color=color, linestyle=style.line, linewidth=1.5, label=label)
    elif series.look is Look.BARS:
        axes.stairs(series.ys, series.xs, fill=True, color=color, label=label, **bars)
    elif series.look is Look.STEPS:
        axes.stairs(
            series.ys, series.xs, baseline=None, color=color, linestyle=style.line, linewidth=1.5,
            label=label,
        )  # fmt: skip
    else:
        margins = [each or 0.0 for each in series.margins] or None
        axes.errorbar(
            series.xs, series.ys, yerr=margins, color=color, linestyle=style.line, linewidth=1.5,
            marker=style.marker, markersize=7 if "$" in style.marker else 5,
            markerfacecolor=_PAPER if style.hollow else color, capsize=3 if margins else 0,
            elinewidth=1.2, label=label,
        )  # fmt: skip


def _scale(axes: Axes, axis: Axis, *, x: bool) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    shown_axis = axes.xaxis if x else axes.yaxis
    if axis.log:
        (axes.set_xscale if x else axes.set_yscale)("log")
        data = axes.dataLim
        low, high = data.intervalx if x else data.intervaly
        if low <= 0:  # an interval may reach below what such an axis can show
            low = data.minposx if x else data.minposy
        low, high = _outward(axis.low or low, axis.high or high)
        if not axis.ticks:
            (axes.set_xlim if x else axes.set_ylim)(low, high)
        few = high / low <= 1000
        shown_axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        shown_axis.set_minor_locator(NullLocator())
    else:
        shown_axis.set_major_locator(MaxNLocator(6 if x else 5, steps=[1, 2, 5, 10]))
    if axis.ticks:
        shown_axis.set_major_locator(FixedLocator(list(axis.ticks)))
    shown_axis.set_major_formatter(FuncFormatter(_tick_text))
    if not axis.log:
        # A line at the upper end of the data is not to lie on the edge.
        high = axis.high or 1.05 * (axes.get_xlim if x else axes.get_ylim)()[1]
        (axes.set_xlim if x else axes.set_ylim)(axis.low or 0.0, high)


def _outward(low: float, high: float) -> tuple[float, float]:
    """Returns the nearest 1, 2 or 5 times a power of ten that are beyond both values."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    marks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    below = max(mark for mark in marks if mark < low)
    return below, min(mark for mark in marks if mark > high)


def _tick_text(value: float, place: int | None = None) -> str:
    return f"{value:,.10g}" if abs(value) >= 10_000 else f"{value:.4g}"


def _name_marks(axes: Axes, marked: Sequence[Marked]) -> None:
    """Writes the names of lines: at the right end, or slanted above the axes."""
    for each in marked:
        if each.horizontal:
            axes.annotate(
                each.name, (1, each.at), xycoords=("axes fraction", "data"), xytext=(0, 3),
                textcoords="offset points", ha="right", color=_INK, fontsize=_POINTS - 1,
                bbox={"facecolor": _PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
            )  # fmt: skip
    vertical = sorted((each for each in marked if not each.horizontal), key=lambda each: each.at)
    if not vertical:
        return
    to_axes = axes.transData + axes.transAxes.inverted()
    names: dict[float, str] = {}
    last = -1.0
    for each in vertical:
        share = float(to_axes.transform((each.at, 0))[0])
        if share - last < _NAME_SHARE:  # beside the name before
            names[next(reversed(names))] += f", {each.name}"
        else:
            names[each.at], last = each.name, share
    above = axes.secondary_xaxis("top")
    above.spines["top"].set_visible(False)
    above.set_xticks(list(names))
    above.minorticks_off()
    above.set_xticklabels(
        list(names.values()), rotation=30, ha="left", fontsize=_POINTS - 1, color=_INK
    )
    above.tick_params(length=2, pad=0, color=_INK)


def _wrapped(text: str, characters: int) -> str:
    """Breaks a text into lines, and replaces the characters that the font does not have."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties()))
    drawable = "".join(
        each if font.get_char_index(ord(each)) else "\N{REPLACEMENT CHARACTER}"
        for each in shown(text)
    )
    return textwrap.fill(drawable, characters)

"""Draws charts with matplotlib: as a PNG or SVG of all of them, or as an element of a page.

matplotlib is loaded when something is drawn, and only its figures: no window, and no state that
one picture leaves for the next. Equal charts make equal bytes.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Sequence
from itertools import cycle
from math import dist
from typing import TYPE_CHECKING, Any, Final
from xml.etree.ElementTree import Element, fromstring

from orch_sidecar.tools.drawing.chart import Axis, Chart, Series
from orch_sidecar.tools.drawing.texts import element, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The palette of Okabe and Ito, which suits color-blind readers, without the colors that are too
# light for a line on white.
COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#000001")
_INK, _SOFT, _RULE, _PAPER, _BOUND = "#1a1d21", "#5b6470", "#d9dde2", "#fffffe", "#b3261e"
# A page has all of these as variables, so that they follow its light or dark scheme.
_COLORS: Final = (*COLORS, _INK, _SOFT, _RULE, _PAPER, _BOUND)
_VARIABLES: Final = ("s0", "s1", "s2", "s3", "s4", "s5", "ink", "soft", "rule", "paper", "bad")

# Inches of one chart without its names, of its place in a picture with them, and of a line of a
# legend; points of texts, which a phone shows at 4/5.
_SIZE, _PLACE, _LINE = (4.0, 2.3), (4.8, 3.6), 0.16
_POINTS: Final = 9.0
_LINE_CHARACTERS: Final = 58  # of a line as wide as a chart
_SHORT_CHARACTERS: Final = 24  # of names that stand beside each other in a legend
# Beyond so many times the smallest value, a logarithmic axis has only the powers of ten.
_FEW_POWERS: Final = 1000
_BEYOND: Final = 1.1  # what a logarithmic axis shows beyond its values: equal ones have a middle
# In points: how far apart letters do not cover each other, and how far beside its own point of the
# series a letter may stand, in the order in which places are tried.
_LETTER: Final = 13.0
_ASIDE: Final = (0, 14, -14, 28, 42, 56, 70, 84)

# matplotlib's settings.
_STYLE: Final[dict[str, Any]] = {
    "font.size": _POINTS,
    "text.color": _INK,
    "axes.axisbelow": True,
    "axes.edgecolor": _SOFT,
    "axes.grid": True,
    "axes.labelcolor": _SOFT,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": _RULE,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "savefig.bbox": "tight",
    "savefig.dpi": 150,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
}


def require() -> Any:
    """Returns matplotlib. Raises ValueError without it."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise ValueError(f"pictures need matplotlib: pip install matplotlib ({error})") from error
    return matplotlib


def drawn(suffix: str, title: str, charts: Sequence[Chart]) -> bytes:
    """Draws charts beside and below each other, as PNG or SVG by the suffix. Raises ValueError
    without a chart or matplotlib."""
    if not charts:
        raise ValueError("a plot needs at least one chart, and there is nothing to draw")
    matplotlib = require()
    columns = len(charts) if len(charts) <= 3 else 2
    rows = -(-len(charts) // columns)
    explained = (sum(1 + len(name) // _LINE_CHARACTERS for name in c.explained) for c in charts)
    width, height = _PLACE[0], _PLACE[1] + _LINE * max(explained)
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": "orch"}):
        figure = matplotlib.figure.Figure((columns * width, rows * height), layout="constrained")
        places = figure.subplots(rows, columns, squeeze=False).flat
        figure.suptitle(_wrapped(title, _LINE_CHARACTERS * columns), fontsize=_POINTS + 2)
        for chart, axes in zip(charts, places, strict=False):
            _draw(axes, chart)
            names = (_wrapped(each, _LINE_CHARACTERS) for each in (chart.title, chart.about))
            axes.set_title("\n".join(names), fontsize=_POINTS)
        for axes in places:
            axes.remove()
        return _saved(figure, suffix.lower().removeprefix("."), pad_inches=0.15)


def element_of(chart: Chart, number: int) -> Element:
    """Returns the SVG of a chart for a page, with its title and words for who cannot see it.

    `number`: of the pictures of the page, which makes its ids its own. Its texts are texts. Raises
    ValueError.
    """
    matplotlib = require()
    title, about = f"picture-{number}-title", f"picture-{number}-about"
    salt = {"svg.hashsalt": f"orch-{number}", "svg.fonttype": "none"}
    with matplotlib.rc_context({**_STYLE, **salt}):
        figure = matplotlib.figure.Figure(_SIZE)
        _draw(figure.add_axes((0.0, 0.0, 1.0, 1.0)), chart)
        drawing = _saved(figure, "svg", pad_inches=0.02, transparent=True)
    root = fromstring(drawing)  # noqa: S314 (matplotlib has just written it)
    _make_part_of_page(root)
    del root.attrib["width"], root.attrib["height"]
    root.attrib |= {"class": "chart", "role": "img", "aria-labelledby": f"{title} {about}"}
    root.insert(0, element("title", chart.title, id=title))
    root.insert(1, element("desc", chart.about, id=about))
    return root


def _saved(figure: Any, form: str, **look: Any) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings():
        # A picture has a box for what the font cannot draw; a page has the text itself. A
        # chart whose names leave it no room gets matplotlib's default layout.
        warnings.filterwarnings("ignore", "Glyph .* missing|constrained_layout not applied")
        # No date in an SVG: equal charts make equal bytes.
        figure.savefig(out, format=form, metadata={"Date": None} if form == "svg" else {}, **look)
    return out.getvalue()


def _make_part_of_page(each: Element) -> None:
    """Takes from an SVG what only a file of its own has, and gives it the colors of the page."""
    each.tag = each.tag.rpartition("}")[2]
    found = {name.rpartition("}")[2]: value for name, value in each.attrib.items()}
    if each.tag == "g":
        found.pop("id", None)  # those of groups are equal in all pictures; others have their salt
    for color, variable in zip(_COLORS, _VARIABLES, strict=True):
        found = {name: value.replace(color, f"var(--{variable})") for name, value in found.items()}
    each.attrib = found
    for child in list(each):
        _make_part_of_page(child)
        if child.tag in ("metadata", "style"):
            each.remove(child)


def _draw(axes: Axes, chart: Chart) -> None:
    """Draws a chart on its axes, with a legend: the only place where one is drawn."""
    named = [(_add_series(axes, each), each.name) for each in chart.series]
    named = [each for each in named if each[1] in chart.explained]
    for mark, line in zip(chart.marked, cycle(("-", "--", ":")), strict=False):
        draw = axes.axhline if mark.horizontal else axes.axvline
        style, color = ("-.", _BOUND) if mark.is_bound else (line, _INK)
        named.append((draw(mark.at, linestyle=style, color=color, linewidth=1.1), mark.name))
    _scale(axes, "x", chart.x)
    _scale(axes, "y", chart.y)
    axes.minorticks_off()
    _add_letters(axes, chart.series)
    if named:
        short = all(len(name) <= _SHORT_CHARACTERS for _, name in named)
        names = [_wrapped(name, _LINE_CHARACTERS) for _, name in named]
        below: Any = {"loc": "upper left", "bbox_to_anchor": (-0.03, -0.2)}
        axes.legend([sample for sample, _ in named], names, ncols=2 if short else 1, **below)


def _add_series(axes: Axes, series: Series) -> Any:
    """Draws a series; returns what shows it in a legend."""
    color = COLORS[series.color % len(COLORS)]
    if not series.ys:
        return axes.ecdf(series.xs, color=color, linestyle=series.line)
    if len(series.xs) > len(series.ys):
        return axes.stairs(series.ys, series.xs, fill=True, color=color, alpha=0.8)
    margins = [each or 0.0 for each in series.margins] or None
    # Of lines with letters, a solid one and wide dashes of its color are seen on each other.
    width = 1.5 if not series.letter else 1.2 if series.line == "-" else 2.8
    return axes.errorbar(
        series.xs, series.ys, yerr=margins, color=color, linestyle=series.line,
        linewidth=width, marker=series.marker, markersize=5, elinewidth=1.2,
        markerfacecolor=_PAPER if series.hollow else color, capsize=3 if margins else 0,
    )  # fmt: skip


def _add_letters(axes: Axes, series: Sequence[Series]) -> None:
    """Writes the letter of each series once, on one of its points, the last if it can, or beside
    it, so that it covers no other one while there is place."""
    taken: list[tuple[float, float]] = []
    for each in filter(lambda each: each.letter, series):
        points = [*zip(each.xs, each.ys, strict=True)][::-1]
        shares = (axes.transScale + axes.transLimits).transform(points)
        places = [(72 * _SIZE[0] * x, 72 * _SIZE[1] * y) for x, y in shares]
        spots = [
            (point, aside, (x + aside, y))
            for aside in _ASIDE
            for point, (x, y) in zip(points, places, strict=True)
        ]
        free = [spot for spot in spots if all(dist(spot[2], other) >= _LETTER for other in taken)]
        point, aside, place = (free or spots)[0]
        taken.append(place)
        axes.annotate(
            each.letter, point, (aside, 0), textcoords="offset points", ha="center",
            va="center_baseline", size=8, weight="bold", color=COLORS[each.color % len(COLORS)],
            bbox={"boxstyle": "circle,pad=0", "facecolor": _PAPER, "edgecolor": "none"},
        )  # fmt: skip


def _scale(axes: Axes, name: str, axis: Axis) -> None:
    """Sets the ends and the ticks of the axis x or y."""
    from matplotlib.ticker import Locator, LogLocator, MaxNLocator

    which = axes.xaxis if name == "x" else axes.yaxis
    low, high = axis.low or 0.0, axis.high
    most = 6 if name == "x" else 5
    locator: Locator = MaxNLocator(most, steps=[1, 2, 5, 10], integer=axis.whole)
    if axis.log:
        axes.set(**{f"{name}scale": "log"})
        first, last = which.get_view_interval()
        low, high = axis.low or first / _BEYOND, axis.high or last * _BEYOND
        few = (1.0, 2.0, 5.0) if high <= _FEW_POWERS * low else (1.0,)
        locator = LogLocator(base=2.0) if axis.whole else LogLocator(subs=few)
    axes.set(**{f"{name}lim": (low, high), f"{name}label": _wrapped(axis.label, 99)})
    which.set_major_locator(locator)
    which.set_major_formatter("{x:,.10g}")


def _wrapped(text: str, characters: int) -> str:
    """Breaks a text into lines, as one without formulas."""
    return textwrap.fill(shown(text), characters).replace("$", r"\$")

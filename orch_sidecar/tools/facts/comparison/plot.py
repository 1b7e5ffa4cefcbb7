"""Draws panels side by side as files with matplotlib; knows nothing about facts.

matplotlib is loaded when something is drawn, and only its figures: no window, and no state that
one plot leaves for the next.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orch_sidecar.tools.facts.comparison.axes import draw_panel
from orch_sidecar.tools.facts.comparison.series import Panel
from orch_sidecar.tools.facts.tables.files import write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: Final = (".png", ".svg")

_PANEL_INCHES: Final = (6.0, 4.2)
_LEGEND_LINE_INCHES: Final = 0.19
_TITLE_CHARACTERS_PER_PANEL: Final = 62
_DOTS_PER_INCH: Final = 150


class PlotUnavailable(RuntimeError):
    """matplotlib is missing; the message names what to install."""


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
    save(path, _figure(title, panels))


def save(path: Path, figure: Figure) -> None:
    """Writes a figure as PNG or SVG by the suffix. Equal figures make equal bytes."""
    import matplotlib

    form, out = path.suffix.lower().removeprefix("."), io.BytesIO()
    # No date, and no random ids in an SVG.
    with matplotlib.rc_context({"svg.hashsalt": "orch"}):
        metadata = {"Date": None} if form == "svg" else {}
        figure.savefig(out, format=form, dpi=_DOTS_PER_INCH, metadata=metadata)
    write(path, out.getvalue())


def _figure(title: str, panels: Sequence[Panel]) -> Figure:
    from matplotlib.figure import Figure

    wide, high = _PANEL_INCHES
    legend_inches = _LEGEND_LINE_INCHES * max(len(panel.series) for panel in panels)
    figure = Figure(figsize=(wide * len(panels), high + legend_inches), layout="constrained")
    width = _TITLE_CHARACTERS_PER_PANEL * len(panels)
    figure.suptitle(textwrap.fill(title, width), fontsize=12, parse_math=False)
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, panel in zip(all_axes, panels, strict=True):
        draw_panel(axes, panel)
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
    return figure

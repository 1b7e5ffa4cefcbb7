"""Parts of a line: small pictures, times, and texts of a given width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from orch_sidecar.tools.bench.load.stream import shown

_BARS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BARS: Final = "_.-=+*%#"
_MOST: Final = 200  # characters of a name

# The letters of slots, by their owners, with their colors: legible without colors, too.
SLOTS: Final = {
    "interactive": ("i", "green"),
    "bulk": ("b", "blue"),
    "foreign": ("f", "magenta"),
    "closing": ("c", "yellow"),
    "free": (".", "bright_black"),
}
_WIDEST_ROW: Final = 64


def name(value: object) -> str:
    """Returns a text of the document as one line: a terminal obeys control characters."""
    return "" if value is None else shown(str(value), _MOST)


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """Cuts or fills a text to a width in cells; what was cut ends in `~`."""
    if cell_len(text) > width:
        return set_cell_size(text, max(0, width - 1)) + "~"[:width]
    filling = " " * (width - cell_len(text))
    return filling + text if right else text + filling


def sparkline(values: Sequence[float], most: float, *, ascii_only: bool) -> str:
    """Returns a bar for each value, the highest for `most`."""
    bars = _ASCII_BARS if ascii_only else _BARS
    if most <= 0:
        return bars[0] * len(values)
    top = len(bars) - 1
    return "".join(bars[max(0, min(top, round(top * value / most)))] for value in values)


def slots_row(slots: Mapping[str, int]) -> Text:
    """Returns a letter for each slot; where there are many, one for several."""
    per_letter = -(-max(1, slots["total"]) // _WIDEST_ROW)
    row = Text()
    for kind, (letter, color) in SLOTS.items():
        row.append(letter * -(-slots[kind] // per_letter), color)
    return row


def number(value: float | None) -> str:
    """Formats a figure in at most five characters."""
    if value is None:
        return "-"
    if abs(value) >= 99_999.5:
        return f"{value / 1000:.0f}k" if abs(value) < 9_999_500 else f"{value / 1e6:.0f}M"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.1f}"


def milliseconds(value: float | None) -> str:
    """Formats a time of a request, in ms or s."""
    if value is None:
        return "-"
    return f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:.0f} s"


def duration(seconds: float) -> str:
    """Formats an age: `1.2 s`, `75 s`, `12 min`, `3 h`, `4 d`."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, unit, length in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def pair(values: Any) -> str:
    """Formats a median and a 95th percentile in milliseconds."""
    return "-" if not values else "/".join(number(value) for value in values)

"""Converts a comparison to a chart: a row for each set, and its curves by batch.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Final

from orch_sidecar.tools.facts.comparison.compare import ComparableSet, Comparison, Point
from orch_sidecar.tools.facts.comparison.conditions import DIFFERENCES, Conditions
from orch_sidecar.tools.facts.comparison.describe import (
    contrasting_conditions,
    describe,
    differing_conditions,
)
from orch_sidecar.tools.facts.comparison.series import Kind, Panel, Series, Style
from orch_sidecar.tools.facts.tables.row import Label

# A line style and marker for each way of batching: distinct without colors. Rows to be
# confirmed are in no comparison, and have none.
STYLES: Final[Mapping[Label, Style]] = {
    Label.SINGLE_STREAM: Style(line="-", marker="o"),
    Label.BATCHED_ONLINE: Style(line="--", marker="s"),
    Label.OFFLINE: Style(line="-.", marker="^"),
}

LINEAR: Final = "linear scaling"


@dataclass(frozen=True, slots=True)
class ChartRow:
    """One set: its letter, what distinguishes it, and its points by batch."""

    letter: str
    name: str
    style: Style
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of a comparison. `title`: the conditions that all sets share.

    `panels`: throughput and speed-up by batch; empty if no set has several batches.
    """

    title: str
    rows: tuple[ChartRow, ...]
    panels: tuple[Panel, ...]


def chart_of(comparison: Comparison) -> Chart:
    """Returns the chart. Rows are in the order of the sets, which determines their letters.

    Sets that differ in the measurement type only share a color. Raises ValueError for a comparison
    without a set.
    """
    sets = comparison.sets
    if not sets:
        raise ValueError("the comparison has no set to draw")
    # The conditions beside a row. A row has a name also where all sets agree.
    named = differing_conditions(sets) or ("measurement_type",)
    shared = [name for name in DIFFERENCES if name not in named]
    contrasts = contrasting_conditions(sets)
    colors: dict[Conditions, int] = {}
    rows = []
    for place, of_set in enumerate(sets):
        # Any label that is the same for all sets makes their conditions comparable.
        subject = replace(of_set.conditions, measurement_type=Label.TO_BE_CONFIRMED)
        color = colors.setdefault(subject, len(colors))
        style = replace(STYLES[of_set.conditions.measurement_type], color=color)
        name = describe(of_set.conditions, without=shared, always=contrasts)
        rows.append(ChartRow(_letter(place), name, style, of_set.points))
    title = describe(sets[0].conditions, without=named)
    return Chart(title, tuple(rows), _panels(rows) if any(map(_is_curve, sets)) else ())


def _is_curve(of_set: ComparableSet) -> bool:
    return len(of_set.points) > 1


def _letter(place: int) -> str:
    return ascii_uppercase[place] if place < len(ascii_uppercase) else str(place + 1)


def _panels(rows: list[ChartRow]) -> tuple[Panel, ...]:
    speeds = tuple(
        _series(row, [(p.batch_mean, p.tokens_per_s.median) for p in row.points]) for row in rows
    )
    speedups = tuple(
        _series(row, [(p.batch_mean / row.points[0].batch_mean, p.speedup) for p in row.points])
        for row in rows
        if len(row.points) > 1
    )
    most = max(series.xs[-1] for series in speedups)
    linear = Series(LINEAR, Kind.CURVE, (1.0, most), (1.0, most), Style(line=":"))
    batch = "mean batch (sequences per decode step)"
    return (
        Panel("Throughput by batch", batch, "generated tokens/s", speeds),
        Panel(
            title=f"Speed-up by batch (dotted: {LINEAR})",
            x_label="mean batch over the set's smallest",
            y_label="speed-up",
            series=(*speedups, linear),
            same_scale=True,
        ),
    )


def _series(row: ChartRow, points: list[tuple[float, float]]) -> Series:
    xs, ys = zip(*points, strict=True)
    return Series(row.name, Kind.MEASURED, xs, ys, row.style, row.letter)

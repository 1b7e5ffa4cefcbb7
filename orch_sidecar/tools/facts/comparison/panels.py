"""Converts a comparison to the panels of a plot: throughput and TTFT by batch.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from string import ascii_uppercase
from typing import Final

from orch_sidecar.tools.facts.comparison.compare import (
    DIFFERENCES,
    ComparableSet,
    Comparison,
    Conditions,
    Point,
    differing_conditions,
)
from orch_sidecar.tools.facts.comparison.plot import Kind, Panel, Series, Style
from orch_sidecar.tools.facts.comparison.report import describe
from orch_sidecar.tools.facts.tables.row import Label

# A line style and marker for each way of batching, to tell them apart without colors. Rows to be
# confirmed are in no comparison, and have none.
STYLES: Final[Mapping[Label, Style]] = {
    Label.SINGLE_STREAM: Style(line="-", marker="o"),
    Label.BATCHED_ONLINE: Style(line="--", marker="s"),
    Label.OFFLINE: Style(line="-.", marker="^"),
}

_BATCH_LABEL: Final = "batch b (sequences per step)"


def title_and_panels(comparison: Comparison) -> tuple[str, list[Panel]]:
    """Returns the conditions that all sets share, and the panels for `plot.draw`.

    TTFT has a panel if any row notes it. The letter of a set is that of its place; sets that differ
    in the measurement type only share a color. Raises ValueError for a comparison without a set.
    """
    sets = comparison.sets
    if not sets:
        raise ValueError("the comparison has no set to draw")
    # The conditions in the legend, always with the way of batching.
    named = {*differing_conditions(sets), "measurement_type"}
    shared = [name for name in DIFFERENCES if name not in named]
    colors: dict[Conditions, int] = {}
    speeds, ttfts = [], []
    for place, of_set in enumerate(sets):
        name = describe(of_set.conditions, without=shared)
        # Any label that is the same for all sets makes their conditions comparable.
        subject = replace(of_set.conditions, measurement_type=Label.TO_BE_CONFIRMED)
        color = colors.setdefault(subject, len(colors))
        style = replace(STYLES[of_set.conditions.measurement_type], color=color)
        letter = _letter(place)
        speeds.append(_speeds(of_set, name, style, letter))
        ttfts += _ttfts(of_set, name, style, letter)
    panels = [Panel("throughput", _BATCH_LABEL, "generated tokens/s", tuple(speeds))]
    if ttfts:
        panels.append(Panel("time to first token", _BATCH_LABEL, "TTFT (ms)", tuple(ttfts)))
    return describe(sets[0].conditions, without=list(named)), panels


def _letter(place: int) -> str:
    return ascii_uppercase[place] if place < len(ascii_uppercase) else str(place + 1)


def _speeds(of_set: ComparableSet, name: str, style: Style, letter: str) -> Series:
    points = of_set.points
    several = any(point.rows > 1 for point in points)
    figures = [point.tokens_per_s for point in points]
    return Series(
        name=f"{name} (median, min to max)" if several else name,
        kind=Kind.MEASURED,
        xs=_batches(points),
        ys=tuple(figure.median for figure in figures),
        style=style,
        ranges=tuple((figure.least, figure.most) for figure in figures) if several else (),
        letter=letter,
    )


def _ttfts(of_set: ComparableSet, name: str, style: Style, letter: str) -> list[Series]:
    """Returns p50 with filled markers and p95 with hollow ones, of the batches that have them."""
    found = []
    for percentile in ("p50", "p95"):
        value_of = {
            point: point.ttft_p50_ms if percentile == "p50" else point.ttft_p95_ms
            for point in of_set.points
        }
        values = {point: value for point, value in value_of.items() if value is not None}
        if values:
            series = Series(
                name=f"{name}, {percentile}",
                kind=Kind.MEASURED,
                xs=_batches(tuple(values)),
                ys=tuple(values.values()),
                style=replace(style, hollow=percentile == "p95"),
                letter=letter,
            )
            found.append(series)
    return found


def _batches(points: Sequence[Point]) -> tuple[float, ...]:
    return tuple(float(point.batch) for point in points)

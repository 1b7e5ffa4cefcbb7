"""A comparison as panels of a picture: tokens per second, and the first token, by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from string import ascii_uppercase
from typing import Final

from orch_sidecar.tools.facts.comparison.compare import (
    SEPARATION_REASONS,
    Comparison,
    Conditions,
    Point,
    Set,
    differing,
)
from orch_sidecar.tools.facts.comparison.plot import Kind, Panel, Series, Style
from orch_sidecar.tools.facts.comparison.report import said
from orch_sidecar.tools.facts.tables.row import Label

# One line style and marker for each way of batching: without colours, too, nobody reads two of
# them as one. Rows to be confirmed are in no comparison, and have none.
LOOKS: Final[Mapping[Label, Style]] = {
    Label.SINGLE_STREAM: Style(line="-", marker="o"),
    Label.BATCHED_ONLINE: Style(line="--", marker="s"),
    Label.OFFLINE: Style(line="-.", marker="^"),
}

BATCH_LABEL: Final = "batch b (sequences per step)"


def title_and_panels(comparison: Comparison) -> tuple[str, list[Panel]]:
    """What all sets share, and the panels for `plot.draw`. TTFT has one where any row notes it.

    A set's letter and colour are those of its place; colours are shared by sets that differ in
    the measurement type alone. Raises ValueError for a comparison without a set.
    """
    sets = comparison.sets
    if not sets:
        raise ValueError("there is no set to draw")
    # What the legend must tell; how the engine was batching is always told there.
    told = {*differing(sets), "measurement_type"}
    shared = [name for name in SEPARATION_REASONS if name not in told]
    colours: dict[Conditions, int] = {}
    speeds, ttfts = [], []
    for place, of_set in enumerate(sets):
        name = said(of_set.conditions, without=shared)
        # Which label stands in for all does not matter; it is the same for every set.
        subject = replace(of_set.conditions, measurement_type=Label.TO_BE_CONFIRMED)
        colour = colours.setdefault(subject, len(colours))
        style = replace(LOOKS[of_set.conditions.measurement_type], colour=colour)
        letter = _letter(place)
        speeds.append(_speeds(of_set, name, style, letter))
        ttfts += _ttfts(of_set, name, style, letter)
    panels = [Panel("throughput", BATCH_LABEL, "generated tokens/s", tuple(speeds))]
    if ttfts:
        panels.append(Panel("time to first token", BATCH_LABEL, "TTFT (ms)", tuple(ttfts)))
    return said(sets[0].conditions, without=list(told)), panels


def _letter(place: int) -> str:
    return ascii_uppercase[place] if place < len(ascii_uppercase) else str(place + 1)


def _speeds(of_set: Set, name: str, style: Style, letter: str) -> Series:
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


def _ttfts(of_set: Set, name: str, style: Style, letter: str) -> list[Series]:
    """p50 with filled markers and p95 with hollow ones, of the batches that note them."""
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

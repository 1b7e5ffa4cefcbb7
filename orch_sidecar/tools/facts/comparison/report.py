"""Formats a comparison as text for people and as a document for programs.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

from orch_sidecar.tools.facts.comparison.compare import ComparableSet, Comparison, Point
from orch_sidecar.tools.facts.comparison.conditions import DIFFERENCES
from orch_sidecar.tools.facts.comparison.describe import (
    contrasting_conditions,
    describe,
    differing_conditions,
    value_text,
)

_HEADER: Final = ("rows", "tokens/s", "min", "max", "per sequence", "speed-up", "efficiency")
_TTFT_HEADER: Final = ("TTFT p50 ms", "p95 ms")


def as_text(comparison: Comparison) -> str:
    """Formats a table for each set, then the separated sets and the excluded rows."""
    contrasts = contrasting_conditions(comparison.sets)
    parts = [_set_text(of_set, contrasts) for of_set in comparison.sets]
    if comparison.apart:
        heading = "not compared, since one condition differs:"
        parts.append("\n".join([heading, *_separations(comparison)]))
    if comparison.left_out:
        excluded = [f"  {each.place}: {each.why}" for each in comparison.left_out]
        parts.append("\n".join(["excluded:", *excluded]))
    return "\n\n".join(parts)


def _separations(comparison: Comparison) -> Iterator[str]:
    """Formats, by condition, why it separates sets, and its values."""
    varied = differing_conditions(comparison.sets)
    contrasts = contrasting_conditions(comparison.sets)
    for condition, of_condition in groupby(comparison.apart, key=lambda each: each.condition):
        yield f"  {condition}: {DIFFERENCES[condition]}"
        without = [name for name in DIFFERENCES if name == condition or name not in varied]
        for each in of_condition:
            alike = describe(each.alike, without=without, always=contrasts)
            values = ", ".join(map(value_text, each.values))
            yield f"    {values} ({alike})" if alike else f"    {values}"


def as_document(comparison: Comparison) -> dict[str, Any]:
    """Converts a comparison to JSON values, with the field names of `compare`."""
    found = asdict(comparison)
    for each in found["apart"]:
        each["why"] = DIFFERENCES[each["condition"]]
    return found


def _set_text(of_set: ComparableSet, contrasts: Collection[str]) -> str:
    points = of_set.points
    with_ttft = any((point.ttft_p50_ms, point.ttft_p95_ms) != (None, None) for point in points)
    with_peak = any(point.batch_max is not None for point in points)
    header = ["batch", *(["peak"] if with_peak else []), *_HEADER]
    rows = [[*header, *(_TTFT_HEADER if with_ttft else ())]]
    rows += [_cells(point, with_peak, with_ttft) for point in points]
    footer = (
        f"speed-up and efficiency relative to batch {batch_text(points[0].batch_mean)}"
        if len(points) > 1
        else "only one batch: there is no other to compare it with"
    )
    return f"{describe(of_set.conditions, always=contrasts)}\n\n{_aligned(rows)}\n{footer}"


def batch_text(batch_mean: float) -> str:
    """Formats a mean number of sequences per step: `32`, `7.85`."""
    return f"{batch_mean:.2f}".rstrip("0").rstrip(".")


def _cells(point: Point, with_peak: bool, with_ttft: bool) -> list[str]:
    figures = point.tokens_per_s
    peak = "-" if point.batch_max is None else str(point.batch_max)
    cells = [
        batch_text(point.batch_mean),
        *([peak] if with_peak else []),
        str(point.rows),
        *(f"{value:.2f}" for value in (figures.median, figures.least, figures.most)),
        f"{point.tokens_per_s_per_sequence:.2f}",
        f"{point.speedup:.2f}",
        f"{point.efficiency:.2f}",
    ]
    if with_ttft:
        times = (point.ttft_p50_ms, point.ttft_p95_ms)
        cells += ["-" if value is None else f"{value:.1f}" for value in times]
    return cells


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Formats columns of equal width, aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )

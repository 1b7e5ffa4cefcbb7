"""Formats a comparison as text for people and as a document for programs.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from itertools import groupby
from typing import Any, Final

from orch_sidecar.tools.facts.comparison.compare import (
    DIFFERENCES,
    ComparableSet,
    Comparison,
    Conditions,
    Loop,
    Point,
    differing_conditions,
)

_HEADER: Final = (
    *("batch", "rows", "tokens/s", "min", "max"),
    *("per sequence", "speed-up", "efficiency"),
)
_TTFT_HEADER: Final = ("TTFT p50 ms", "p95 ms")


def as_text(comparison: Comparison) -> str:
    """Formats a table for each set, then the separated sets and the excluded rows."""
    parts = [_set_text(of_set) for of_set in comparison.sets]
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
    for condition, of_condition in groupby(comparison.apart, key=lambda each: each.condition):
        yield f"  {condition}: {DIFFERENCES[condition]}"
        without = [name for name in DIFFERENCES if name == condition or name not in varied]
        for each in of_condition:
            alike = describe(each.alike, without)
            values = ", ".join(map(str, each.values))
            yield f"    {values} ({alike})" if alike else f"    {values}"


def as_document(comparison: Comparison) -> dict[str, Any]:
    """Converts a comparison to JSON values, with the field names of `compare`."""
    found = asdict(comparison)
    for each in found["apart"]:
        each["why"] = DIFFERENCES[each["condition"]]
    return found


def describe(conditions: Conditions, without: Sequence[str] = ()) -> str:
    """Formats conditions in one line, except for those in `without`."""
    texts = {
        "gpu": _accelerators(conditions, without),
        "gpu_count": _count(conditions.gpu_count),
        "input_tokens": f"{conditions.input_tokens} tokens in",
        "output_tokens": f"{conditions.output_tokens} tokens out",
        "arrivals": "" if conditions.arrivals is Loop.UNKNOWN else conditions.arrivals,
    }
    names = [field.name for field in fields(conditions) if field.name not in without]
    if "gpu" in names and "gpu_count" in names:
        names.remove("gpu_count")
    parts = (texts[name] if name in texts else str(getattr(conditions, name)) for name in names)
    return ", ".join(each for each in parts if each)


def _count(gpus: int) -> str:
    return "no accelerator" if gpus == 0 else f"{gpus} accelerator{'' if gpus == 1 else 's'}"


def _accelerators(conditions: Conditions, without: Sequence[str]) -> str:
    """Formats `4 x H100`, or the machine without an accelerator."""
    if conditions.gpu_count == 0 or "gpu_count" in without:
        return conditions.gpu
    return f"{conditions.gpu_count} x {conditions.gpu}"


def _set_text(of_set: ComparableSet) -> str:
    with_ttft = any(
        (point.ttft_p50_ms, point.ttft_p95_ms) != (None, None) for point in of_set.points
    )
    rows = [[*_HEADER, *(_TTFT_HEADER if with_ttft else ())]]
    rows += [_cells(point, with_ttft) for point in of_set.points]
    smallest = of_set.points[0].batch
    footer = (
        f"speed-up and efficiency relative to batch {smallest}"
        if len(of_set.points) > 1
        else "only one batch: there is no other to compare it with"
    )
    return f"{describe(of_set.conditions)}\n\n{_aligned(rows)}\n{footer}"


def _cells(point: Point, with_ttft: bool) -> list[str]:
    figures = point.tokens_per_s
    cells = [
        str(point.batch),
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

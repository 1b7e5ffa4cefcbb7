"""A comparison as text, for people, and as a document, for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from itertools import groupby
from typing import Any, Final

from orch_sidecar.tools.facts.comparison.compare import (
    SEPARATION_REASONS,
    Comparison,
    Conditions,
    Loop,
    Point,
    Set,
    differing,
)

_HEAD: Final = ("batch", "rows", "tokens/s", "min", "max", "per sequence", "speed-up", "efficiency")
_TTFT_HEAD: Final = ("TTFT p50 ms", "p95 ms")


def text(comparison: Comparison) -> str:
    """One table for each set, what was kept apart, and what was left out."""
    parts = [_set_text(of_set) for of_set in comparison.sets]
    if comparison.apart:
        parts.append("\n".join(["kept apart, alike but for one condition:", *_apart(comparison)]))
    if comparison.left_out:
        left_out = [f"  {each.place}: {each.why}" for each in comparison.left_out]
        parts.append("\n".join(["left out:", *left_out]))
    return "\n\n".join(parts)


def _apart(comparison: Comparison) -> Iterator[str]:
    """By condition: why it matters, and the values, with what tells these sets from others."""
    varied = differing(comparison.sets)
    for condition, of_condition in groupby(comparison.apart, key=lambda each: each.condition):
        yield f"  {condition}: {SEPARATION_REASONS[condition]}"
        without = [name for name in SEPARATION_REASONS if name == condition or name not in varied]
        for each in of_condition:
            alike = said(each.alike, without)
            values = ", ".join(map(str, each.values))
            yield f"    {values} ({alike})" if alike else f"    {values}"


def document(comparison: Comparison) -> dict[str, Any]:
    """The same as JSON has it: the fields of `compare`'s values, by their names."""
    found = asdict(comparison)
    for each in found["apart"]:
        each["why"] = SEPARATION_REASONS[each["condition"]]
    return found


def said(conditions: Conditions, without: Sequence[str] = ()) -> str:
    """Conditions in one line, but for those that are left out."""
    words = {
        "gpu": _accelerators(conditions, without),
        "gpu_count": _count(conditions.gpu_count),
        "input_tokens": f"{conditions.input_tokens} tokens in",
        "output_tokens": f"{conditions.output_tokens} tokens out",
        "arrivals": "" if conditions.arrivals is Loop.NOT_TOLD else conditions.arrivals,
    }
    names = [field.name for field in fields(conditions) if field.name not in without]
    if "gpu" in names and "gpu_count" in names:
        names.remove("gpu_count")
    told = (words[name] if name in words else str(getattr(conditions, name)) for name in names)
    return ", ".join(each for each in told if each)


def _count(gpus: int) -> str:
    return "no accelerator" if gpus == 0 else f"{gpus} accelerator{'' if gpus == 1 else 's'}"


def _accelerators(conditions: Conditions, without: Sequence[str]) -> str:
    """`4 x H100`, and a machine without any by its name alone."""
    if conditions.gpu_count == 0 or "gpu_count" in without:
        return conditions.gpu
    return f"{conditions.gpu_count} x {conditions.gpu}"


def _set_text(of_set: Set) -> str:
    with_ttft = any(
        point.ttft_p50_ms is not None or point.ttft_p95_ms is not None for point in of_set.points
    )
    rows = [[*_HEAD, *(_TTFT_HEAD if with_ttft else ())]]
    rows += [_cells(point, with_ttft) for point in of_set.points]
    smallest = of_set.points[0].batch
    under = (
        f"speed-up and efficiency against batch {smallest}"
        if len(of_set.points) > 1
        else "one batch only: nothing to compare it with"
    )
    return f"{said(of_set.conditions)}\n\n{_aligned(rows)}\n{under}"


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
    """Columns of equal width, flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )

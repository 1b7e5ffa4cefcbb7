"""Compares two results: their figures with confidence intervals, and their conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orch_sidecar.tools.bench.report.conditions import Condition, differing
from orch_sidecar.tools.bench.report.intervals import Change, change
from orch_sidecar.tools.bench.report.measures import Measure, measures_of
from orch_sidecar.tools.bench.results.result import Result


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of two results; `change`: None where the first is 0."""

    before: Measure
    after: Measure
    change: Change | None

    @property
    def verdict(self) -> str:
        """Whether the second is better: a finding only where the interval leaves no doubt."""
        found = self.change
        if self.before.estimate.drifts or self.after.estimate.drifts:
            return "unknown: drifts"
        if found is None or found.interval is None:
            return "unknown: too short"
        if not found.is_shown:
            return "no difference shown"
        return "better" if (found.value > 0) is self.before.larger_is_better else "worse"

    @property
    def change_text(self) -> str:
        """The change with its interval."""
        found = self.change
        if found is None:
            return "-"
        text = self._percent(found.value)
        if found.interval is not None:
            low, high = map(self._percent, found.interval)
            text += f" ({low} to {high})"
        return text

    def _percent(self, value: float) -> str:
        # A share changes by percentage points: 40 % to 50 % is not 25 %.
        return f"{100 * value:+.1f} {'%' if self.before.relative else 'points'}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two results, the figures of both, and the conditions in which they differ."""

    before: Result
    after: Result
    figures: Sequence[Compared]
    differing: Sequence[tuple[Condition, Condition]]

    @property
    def objections(self) -> list[str]:
        """Why the difference in figures may be that of something else, a sentence for each."""
        return [
            f"{one.title}: {one.text or 'unknown'} and {other.text or 'unknown'} ({one.why})"
            for one, other in self.differing
            if one.why
        ]


def comparison_of(before: Result, after: Result) -> Comparison:
    """Compares the figures that both results have. Raises ValueError."""
    second = {(each.of, each.name): each for each in measures_of(after)}
    figures = [
        Compared(each, other, change(each.estimate, other.estimate, relative=each.relative))
        for each in measures_of(before)
        if (other := second.get((each.of, each.name))) is not None
    ]
    return Comparison(before, after, figures, differing(before, after))


def comparison_text(found: Comparison) -> str:
    """Formats a comparison for the terminal."""
    head = ("", "a", "b", "b against a", "")
    rows = [head]
    for each in found.figures:
        values = each.before.value_text, each.after.value_text
        rows.append((each.before.title_and_unit, *values, each.change_text, each.verdict))
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if at in (1, 2) else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    if not found.figures:
        lines = ["no figure that both have"]
    lines.append(f"conditions that differ: {len(found.differing) or 'none'}")
    for one, other in found.differing:
        why = f"  ({one.why})" if one.why else ""
        lines.append(f"  {one.title}: {one.text or 'unknown'} -> {other.text or 'unknown'}{why}")
    return "\n".join(lines)

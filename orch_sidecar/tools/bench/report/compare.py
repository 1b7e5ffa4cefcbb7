"""Two results side by side: their figures with confidence intervals, and their conditions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from orch_sidecar.tools.bench.report.measures import Estimate, Measure, measures_of, times_of
from orch_sidecar.tools.bench.report.run import (
    INTERVALS_TEXT,
    conditions,
    conditions_of,
    distribution,
    verdict,
)
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.drawing.page import Page
from orch_sidecar.tools.drawing.texts import NONE

_HEAD: Final = ("figure", "a (95 % interval)", "b (95 % interval)", "b against a", "b is")

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of two results. `change`: from the first to the second, as a share of the first or
    as a difference; None where the first is 0. `interval`: of the change; None without one."""

    before: Measure
    after: Measure
    change: float | None
    interval: Interval | None

    @property
    def verdict(self) -> str:
        """Whether the second is better: a finding only where the interval leaves no doubt."""
        if self.before.estimate.drifts or self.after.estimate.drifts:
            return "unknown: drifts"
        if self.change is None or self.interval is None:
            return "unknown: too short"
        if self.interval[0] <= 0 <= self.interval[1]:
            return "no difference shown"
        return "better" if (self.change > 0) is self.before.larger_is_better else "worse"

    @property
    def change_text(self) -> str:
        """The change with its interval."""
        if self.change is None:
            return NONE
        if self.interval is None:
            return self._percent(self.change)
        low, high = map(self._percent, self.interval)
        return f"{self._percent(self.change)} ({low} to {high})"

    def _percent(self, value: float) -> str:
        # A share changes by percentage points: 40 % to 50 % is not 25 %.
        return f"{100 * value:+.1f} {'points' if self.before.is_share else '%'}"


def change(
    before: Estimate, after: Estimate, *, relative: bool
) -> tuple[float | None, Interval | None]:
    """Returns the change, None of a figure that is 0 and has no relative one; and its interval.

    The interval of a ratio is that of the difference of the logarithms (delta method); none of a
    figure whose own interval reaches 0, as its logarithm has no bound.
    """
    known = before.margin is not None and after.margin is not None
    if not relative:
        moved = after.value - before.value
        wide = math.hypot(before.margin or 0.0, after.margin or 0.0)
        return moved, (moved - wide, moved + wide) if known else None
    if before.value <= 0 or after.value <= 0:
        return None, None
    ratio = after.value / before.value
    shares = [(each.margin or 0.0) / each.value for each in (before, after)]
    if not known or max(shares) >= 1:
        return ratio - 1, None
    wide = math.exp(math.hypot(*shares))
    return ratio - 1, (ratio / wide - 1, ratio * wide - 1)


def compared(before: Result, after: Result) -> list[Compared]:
    """Compares the figures that both results have. Raises ValueError."""
    second = {each.name: each for each in measures_of(after)}
    return [
        Compared(each, other, *change(each.estimate, other.estimate, relative=not each.is_share))
        for each in measures_of(before)
        if (other := second.get(each.name)) is not None
    ]


def differing(before: Result, after: Result) -> Iterator[tuple[str, str, str]]:
    """Yields the names of the conditions in which two results differ, and both texts."""
    pairs = zip(conditions_of(before).values(), conditions_of(after).values(), strict=True)
    for first, second in pairs:
        for name in first | second:
            a, b = (each.get(name) or "unknown" for each in (first, second))
            if a != b:
                yield name.replace("_", " "), a, b


def compare_report(before: Result, after: Result) -> Page:
    """Returns the page of two results. Raises ValueError as `run_report` does."""
    names = dict.fromkeys([before.engine.model_name, after.engine.model_name])
    page = Page(f"{' and '.join(names)}: two runs compared")
    verdict(page, before, "a")
    verdict(page, after, "b")
    page.section("What differs in their conditions")
    same = "Nothing that the results record."
    page.table(("condition", "a", "b"), differing(before, after), texts=3, otherwise=same)
    page.section("Figures")
    rows = [
        (each.before.name_and_unit, each.before.text, each.after.text, each.change_text,
         each.verdict)
        for each in compared(before, after)
    ]  # fmt: skip
    none = "There is no figure that both have."
    page.table(_HEAD, rows, kinds={"better": "good", "worse": "bad"}, otherwise=none)
    page.remark(INTERVALS_TEXT)
    page.remark(
        "A change is shown only where its interval does not contain 0. Two runs of the same system "
        "may differ by more than that: repeat both, in turns, before you decide on a small change."
    )
    others = {each.name: each for each in times_of(after)}
    pairs = ((each, others.get(each.name)) for each in times_of(before))
    page.charts((distribution([one, other]) for one, other in pairs if other), "Distributions")
    page.section("All conditions of a")
    conditions(page, before)
    page.remark(f"a: result {before.id}. b: result {after.id}.")
    return page

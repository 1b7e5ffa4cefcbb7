"""Two results side by side: their figures with confidence intervals, and their conditions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from orch_sidecar.tools.bench.report.figures import time_axis
from orch_sidecar.tools.bench.report.measures import (
    Estimate,
    Measure,
    Times,
    by_class,
    measures_of,
    times_of,
)
from orch_sidecar.tools.bench.report.run import (
    INTERVALS_TEXT,
    MATTERS,
    began,
    conditions_of,
    differing,
    verdict,
)
from orch_sidecar.tools.bench.report.sweep import curves_by_clients
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.results.sweep import Sweep
from orch_sidecar.tools.drawing.chart import Axis, Chart, Look, Marked, Series, Style
from orch_sidecar.tools.drawing.page import Page
from orch_sidecar.tools.drawing.texts import NONE, counted

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
        return f"{100 * value:+.1f} {'%' if self.before.relative else 'points'}"


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
    second = {(each.of, each.name): each for each in measures_of(after)}
    return [
        Compared(each, other, *change(each.estimate, other.estimate, relative=each.relative))
        for each in measures_of(before)
        if (other := second.get((each.of, each.name))) is not None
    ]


def objections(before: Result, after: Result) -> list[str]:
    """Returns why a change in figures may be that of something else, a sentence for each."""
    return [
        f"{name.replace('_', ' ')}: {a or 'unknown'} and {b or 'unknown'} ({MATTERS[name]})"
        for name, a, b in differing(before, after)
        if name in MATTERS
    ]


def compare_report(before: Result, after: Result) -> Page:
    """Returns the page of two results. Raises ValueError as `run_report` does."""
    page = Page(_title(before, after))
    verdict(page, before, "a")
    verdict(page, after, "b")
    _objections(page, before, after)
    page.section("Figures")
    _table(page, before, after)
    page.remark(INTERVALS_TEXT)
    page.remark(
        "A change is shown only where its interval does not contain 0. Two runs of the same system "
        "may differ by more than that: repeat both, in turns, before you decide on a small change."
    )
    page.section("Distributions")
    page.charts(_charts(before, after))
    _conditions(page, before, after)
    page.remark(f"a: result {before.id}. b: result {after.id}.")
    return page


def compare_sweeps_report(before: Sweep, after: Sweep) -> Page:
    """Returns the page of two sweeps: the concurrencies that both have. Raises ValueError."""
    second = {each.scenario.clients: each for each in after.results}
    pairs = [
        (each, second[each.scenario.clients])
        for each in before.results
        if each.scenario.clients in second
    ]
    if not pairs:
        raise ValueError("the sweeps have no concurrency in common: there is nothing to compare")
    first, other = before.results[0], after.results[0]
    page = Page(_title(first, other))
    page.text(f"Two sweeps: a, of {began(first)}, and b, of {began(other)}.")
    _objections(page, *pairs[0])
    page.section("Curves")
    page.charts(curves_by_clients({"a": before, "b": after}))
    for one, same in pairs:
        page.section(counted(one.scenario.clients or 0, "client"))
        _table(page, one, same)
    page.remark(INTERVALS_TEXT)
    _conditions(page, *pairs[0])
    return page


def _title(before: Result, after: Result) -> str:
    names = dict.fromkeys([before.engine.model_name, after.engine.model_name])
    return f"{' and '.join(names)}: two runs compared"


def _objections(page: Page, before: Result, after: Result) -> None:
    if found := objections(before, after):
        page.note("warn", "The runs differ in what may be the reason of a change", found)


def _table(page: Page, before: Result, after: Result) -> None:
    rows = [
        (each.before.title_and_unit, each.before.text, each.after.text, each.change_text,
         each.verdict)
        for each in compared(before, after)
    ]  # fmt: skip
    if rows:
        page.table(_HEAD, rows, kinds={"better": "good", "worse": "bad"})
    else:
        page.text("There is no figure that both have.")


def _conditions(page: Page, before: Result, after: Result) -> None:
    page.section("What differs in their conditions")
    found = differing(before, after)
    rows = [
        (name.replace("_", " "), a or "unknown", b or "unknown", MATTERS.get(name, ""))
        for name, a, b in found
    ]
    if rows:
        page.table(("condition", "a", "b", "what that means"), rows, texts=4)
    else:
        page.text("Nothing that the results record.")
    page.section("What is the same")
    changed = {name for name, _, _ in found}
    page.facts(
        {
            group: {name: text for name, text in texts.items() if text and name not in changed}
            for group, texts in conditions_of(before).items()
        }
    )


def _charts(before: Result, after: Result) -> Iterator[Chart]:
    """Yields both distributions of each time, as the share of the requests up to it."""
    first, second = (by_class(result.calls) for result in (before, after))
    for name in (name for name in first if name in second):
        others = {each.name: each for each in times_of(after, second[name], name)}
        for each in times_of(before, first[name], name):
            if (other := others.get(each.name)) is not None:
                yield _cumulative(each, other, name)


def _cumulative(before: Times, after: Times, of: str) -> Chart:
    bounds = {each.bound_ms for each in (before, after) if each.bound_ms is not None}
    return Chart(
        title=f"{before.title}, {of} requests" if of else before.title,
        about=f"Share of the requests up to each time; {len(before.values)} requests in a, "
        f"{len(after.values)} in b.",
        x=time_axis([*before.values, *after.values, *bounds]),
        y=Axis("share of the requests", high=1.0),
        series=[Series("a", before.values, (), Style("-", ""), Look.SHARES),
                Series("b", after.values, (), Style("--", "", 1), Look.SHARES)],
        marked=[Marked("SLO", bound, is_bound=True) for bound in sorted(bounds)],
    )  # fmt: skip

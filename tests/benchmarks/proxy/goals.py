"""What the sidecar should reach against others in the same run, and whether it did. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from tests.benchmarks.proxy.columns import COLUMNS, Metric, Results
from tests.benchmarks.proxy.targets import RIVAL, SIDECAR, TRACED


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound of a ratio within a round (ours through theirs), or of a difference."""

    ours: str
    theirs: str
    metric: str
    bound: float
    at_least: bool = False
    difference: bool = False

    def reached(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


GOALS = (
    Goal(SIDECAR, RIVAL, "requests/s", 0.9, at_least=True),
    Goal(SIDECAR, RIVAL, "CPU µs per request", 1.0),
    Goal(SIDECAR, RIVAL, "added TTFT staggered p50, ms", 0.0, difference=True),
    Goal(SIDECAR, RIVAL, "added TTFT staggered p99, ms", 0.0, difference=True),
    Goal(SIDECAR, RIVAL, "added TTFT burst p50, ms", 0.0, difference=True),
    Goal(SIDECAR, RIVAL, "added TTFT burst p99, ms", 0.0, difference=True),
    Goal(SIDECAR, RIVAL, "chunks/s", 1.6, at_least=True),
    Goal(SIDECAR, RIVAL, "memory, MB", 1.0),
    Goal(TRACED, SIDECAR, "requests/s", 0.8, at_least=True),
    Goal(TRACED, SIDECAR, "CPU µs per request", 35.0, difference=True),
    Goal(TRACED, SIDECAR, "chunks/s", 0.97, at_least=True),
    Goal(TRACED, SIDECAR, "added TTFT staggered p50, ms", 0.05, difference=True),
    Goal(TRACED, SIDECAR, "memory, MB", 12.0, difference=True),
)


def _metrics() -> dict[str, Metric]:
    return {m.title: m for column in COLUMNS for m in column.metrics}


def by_round(results: Results, goal: Goal) -> list[float]:
    """The goal's ratio or difference, of each round that has both."""
    read = _metrics()[goal.metric].read
    mine, other = read(results, goal.ours), read(results, goal.theirs)
    rounds = sorted(mine.keys() & other.keys())
    if goal.difference:
        return [mine[n] - other[n] for n in rounds]
    return [mine[n] / other[n] for n in rounds if other[n]]


def rows(results: Results) -> Iterator[list[str]]:
    """Cells of a table: what, ours / theirs, median (min to max), goal, reached."""
    for goal in GOALS:
        values = by_round(results, goal)
        if not values:
            continue
        form = "+.2f" if goal.difference else ".2f"
        value = median(values)
        least, most = (format(v, form) for v in (min(values), max(values)))
        sign = "-" if goal.difference else "/"
        yield [
            goal.metric,
            f"{goal.ours} {sign} {goal.theirs}",
            f"{value:{form}} ({least} to {most})",
            f"{'≥' if goal.at_least else '≤'} {goal.bound:{form}}",
            "yes" if goal.reached(value) else "**no**",
        ]

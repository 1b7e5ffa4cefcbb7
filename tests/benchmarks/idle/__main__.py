"""The command line of the benchmark of idle rows, and its table.

For each load, without and with bulk work beside: the rows per second of the class `idle`, and of
the best concurrency that is set by hand, of those that keep the bound. The bound: the p95 of
interactive first tokens is at most RATIO times that without rows, refusals POINTS more at most.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orch_sidecar.tools.drawing.texts import aligned
from tests.benchmarks.idle import virtual
from tests.benchmarks.idle.virtual import Load, Outcome, outcome

RATIO: Final = 1.1
POINTS: Final = 1.0
OF_BEST: Final = 0.95  # rows per second, of those with the best concurrency
WAYS: Final = 1, 2, 3, 4, 6, 8, 12, 16
HEAD: Final = (
    "load", "rows", "TTFT p50", "p95", "over none", "TPOT p95", "over none", "refused",
    "rows/s", "bulk/s", "cuts per row", "occupancy", "bound",
)  # fmt: skip


def main() -> None:
    """Prints a line for each load and way, then what is missed."""
    parser = argparse.ArgumentParser(prog="bench-idle", description=__doc__)
    parser.add_argument("--loads", default="0.3,0.5,0.8", help="of the capacity (%(default)s)")
    parser.add_argument("--bulk-clients", default="0,24", help="beside (%(default)s)")
    parser.add_argument("--seconds", type=float, default=300.0, help="of virtual time (300)")
    parser.add_argument("--trace", type=Path, default=virtual.TRACE, help="of interactive requests")
    options = parser.parse_args()
    lines: list[list[str]] = []
    missed: list[str] = []
    for bulk in map(int, options.bulk_clients.split(",")):
        for load in map(float, options.loads.split(",")):
            found = Found(Load(load, bulk, seconds=options.seconds, trace=options.trace))
            lines += found.lines()
            missed += found.missed()
    print("\n".join(aligned(HEAD, lines, texts=2)))
    print("\n".join(missed) or "all goals were reached")


class Found:
    """The outcomes of one load. `best`: the hand-set concurrency, None where none keeps the
    bound."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.none = outcome(load, None, rows=False)
        self.learned = outcome(load, None)
        by_hand = {way: outcome(load, way) for way in WAYS}
        kept = [way for way, each in by_hand.items() if self.keeps(each)]
        self.best = max(kept, key=lambda way: by_hand[way].rows_per_s, default=None)
        self.by_hand = by_hand

    def keeps(self, found: Outcome) -> bool:
        """Whether interactive requests do not notice."""
        return (
            found.ttft_p95 <= RATIO * self.none.ttft_p95
            and found.refused <= self.none.refused + POINTS / 100
        )

    def missed(self) -> Iterator[str]:
        """What was not reached, in words."""
        if not self.keeps(self.learned):
            yield f"{self.load.name}: interactive requests notice the rows"
        best_per_s = 0.0 if self.best is None else self.by_hand[self.best].rows_per_s
        if self.learned.rows_per_s < OF_BEST * best_per_s:
            ratio = self.learned.rows_per_s / best_per_s
            yield f"{self.load.name}: {ratio:.2f} of the rows/s of {self.best} that run at once"

    def lines(self) -> Iterator[list[str]]:
        ways = {"none": self.none, "learned": self.learned}
        if self.best is not None:
            later = [way for way in WAYS if way > self.best]
            ways |= {f"{way} by hand": self.by_hand[way] for way in (self.best, *later[:1])}
        for name, each in ways.items():
            bound = "" if name == "none" else "kept" if self.keeps(each) else "missed"
            yield [
                self.load.name,
                name,
                f"{each.ttft_p50:.0f} ms",
                f"{each.ttft_p95:.0f} ms",
                f"{each.ttft_p95 / self.none.ttft_p95:.3f}",
                f"{each.tpot_p95:.1f} ms",
                f"{each.tpot_p95 / self.none.tpot_p95:.2f}",
                f"{100 * each.refused:.1f} %",
                f"{each.rows_per_s:.2f}",
                f"{each.bulk_per_s:.2f}",
                f"{each.cut:.2f}",
                f"{100 * each.occupancy:.0f} %",
                bound,
            ]


if __name__ == "__main__":
    main()

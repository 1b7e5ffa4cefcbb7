"""The command line of the benchmark of idle rows, and its table.

For each load, without and with bulk work beside: the rows per second of the class `idle`, and of
the best concurrency that is set by hand, of those that keep the bound. The bound: the p95 of
interactive first tokens is at most 1.1 times that without rows, refusals one point more at most,
and what is done of bulk requests at least 0.85 times that. Then the same for other engines, and for
other rows (`CURVES`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from orch_sidecar.tools.drawing.texts import aligned
from orch_sidecar.tools.traces import factor
from tests.benchmarks.idle import engine, virtual
from tests.benchmarks.idle.virtual import Load, outcome

OF_BEST: Final = 0.95  # rows per second, of those with the best concurrency
WAYS: Final = 1, 2, 3, 4, 6, 8, 12, 16
WAYS_OF_CURVES: Final = 1, 2, 4, 8


def main() -> None:
    """Prints a line for each load and way, then what is missed."""
    parser = argparse.ArgumentParser(prog="bench-idle", description=__doc__)
    parser.add_argument("--loads", default="0.3,0.5,0.8", help="of the capacity (%(default)s)")
    parser.add_argument("--bulk-clients", default="0,24", help="beside (%(default)s)")
    parser.add_argument("--seconds", type=float, help="of virtual time (300), of each arm (30)")
    parser.add_argument("--trace", type=Path, default=virtual.TRACE, help="of interactive requests")
    parser.add_argument("--requests", type=int, default=1500, help="of each curve (%(default)s)")
    real = parser.add_argument_group("on a real engine")
    real.add_argument("--engine", action="store_true", help="on one, at half of what it can do")
    real.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    real.add_argument("--by-hand", default="1,2,4,8,16", help="at once (%(default)s)")
    real.add_argument("--rows", type=int, default=3000, help="of the last batch (%(default)s)")
    real.add_argument("--slots", type=int, default=16, help="(%(default)s)")
    real.add_argument("--paced", type=float, metavar="FACTOR", help="steps take a GPU's time")
    real.add_argument("--length-factor", type=factor, default=1 / 4, help="of all tokens (1/4)")
    options = parser.parse_args()
    if options.engine:
        engine.measure(options)
        return
    lines: list[list[str]] = []
    missed: list[str] = []
    for bulk in map(int, options.bulk_clients.split(",")):
        for load in map(float, filter(None, options.loads.split(","))):
            each = Load(load, bulk, seconds=options.seconds or 300.0, trace=options.trace)
            found = Found(each.name, each, WAYS)
            lines += found.lines()
            missed += found.missed()
    for name, curve in virtual.CURVES.items() if options.requests else ():
        each = replace(curve, requests=options.requests, trace=options.trace)
        found = Found(name, each, WAYS_OF_CURVES)
        lines += found.lines()
        missed += found.missed()
    print("\n".join(aligned(("load", "rows", *virtual.FIGURES), lines, texts=2)))
    print("\n".join(missed) or "all goals were reached")


class Found:
    """The outcomes of one load. `best`: the hand-set concurrency, None where none keeps the
    bound."""

    def __init__(self, name: str, load: Load, ways: Sequence[int]) -> None:
        self.name = name
        self.none = outcome(load, None, rows=False)
        self.learned = outcome(load, None)
        by_hand = {way: outcome(load, way) for way in ways}
        kept = [way for way, each in by_hand.items() if each.keeps_bound(self.none)]
        self.best = max(kept, key=lambda way: by_hand[way].rows_per_s, default=None)
        self.by_hand = by_hand

    def missed(self) -> Iterator[str]:
        """What was not reached, in words."""
        if not self.learned.keeps_bound(self.none):
            yield f"{self.name}: interactive requests notice the rows"
        best_per_s = 0.0 if self.best is None else self.by_hand[self.best].rows_per_s
        if self.learned.rows_per_s < OF_BEST * best_per_s:
            ratio = self.learned.rows_per_s / best_per_s
            yield f"{self.name}: {ratio:.2f} of the rows/s of {self.best} that run at once"

    def lines(self) -> Iterator[list[str]]:
        ways = {"none": self.none, "learned": self.learned}
        if self.best is not None:
            later = [way for way in self.by_hand if way > self.best]
            ways |= {f"{way} by hand": self.by_hand[way] for way in (self.best, *later[:1])}
        for name, each in ways.items():
            yield [self.name, name, *each.cells(self.none)]


if __name__ == "__main__":
    main()

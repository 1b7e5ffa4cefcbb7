"""Tracks single requests at the engines: how often one was accepted, and how long it outlived its
client.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Final

from tests.benchmarks.soak.report import Report
from tests.benchmarks.soak.trouble import Trouble

# The client's end, the close of the engine's connection and the abort take milliseconds; the
# rest is for a machine whose cores are taken. The answer itself would take far longer.
ENDS_WITHIN_S: Final = 2.0


class Ends:
    """What engines report of the orders that ask for it."""

    def __init__(self, report: Report, trouble: Trouble, pools: Iterable[str], most: int) -> None:
        """`most`: engines that one request may be written to."""
        self._report = report
        self._trouble = trouble
        self._pools = tuple(pools)
        self._most = most
        self._taken: Counter[str] = Counter()
        self._running: set[str] = set()
        self._left: dict[str, tuple[float, float]] = {}
        self._ran_s = 0.0

    def seen(self, what: str, key: str) -> None:
        """An engine took an order that kills its connection, or began or ended a watched one."""
        if what == "took":
            self._taken[key] += 1
            if self._taken[key] == self._most + 1:
                detail = f"{key} was written to {self._taken[key]} engines, {self._most} may be"
                self._report.breach("a lost request went to too many engines", detail)
        elif what == "began":
            self._running.add(key)
        else:
            self._running.discard(key)
            self._left.pop(key, None)

    def left(self, key: str) -> None:
        """The client of a watched order is gone."""
        self._left[key] = time.monotonic(), self._ran_s

    def check(self, ran_s: float) -> None:
        """`ran_s`: seconds since the last check in which the processes could run."""
        self._ran_s += ran_s
        now = time.monotonic()
        for key, (since, ran_before_s) in list(self._left.items()):
            if self._ran_s - ran_before_s < ENDS_WITHIN_S:
                continue
            troubled = self._trouble.down(self._pools, since, now)
            if key in self._running and not troubled:
                detail = f"{key}, {now - since:.1f} s after its client has left"
                self._report.breach("an engine works for nobody", detail)
            self._running.discard(key)
            del self._left[key]

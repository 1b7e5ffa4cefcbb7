"""Records when which pool was unreliable.

A failed request is only allowed if a deliberate fault during its lifetime explains it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

# A fault ends when the sidecar takes requests for the pool again; what it decided just before
# may reach a client so much later.
GRACE_S = 0.5


class Kind(Enum):
    """`DOWN`: requests in the engine may fail, too. `AWAY`: no new ones are taken."""

    DOWN = "down"
    AWAY = "away"


@dataclass(slots=True)
class _Interval:
    kind: Kind
    begin: float
    end: float = float("inf")


class Trouble:
    """The intervals of one scene, by pool."""

    def __init__(self) -> None:
        self._intervals: dict[str, list[_Interval]] = {}

    def begin(self, pool: str, kind: Kind) -> _Interval:
        interval = _Interval(kind, time.monotonic())
        self._intervals.setdefault(pool, []).append(interval)
        return interval

    def end(self, interval: _Interval) -> None:
        """The fault has ended, and the sidecar knows."""
        interval.end = time.monotonic()

    def away(self, pools: Iterable[str], begin: float, end: float) -> int:
        """How many of the pools were in trouble at some moment from `begin` to `end`."""
        return sum(self._any(pool, begin, end, tuple(Kind)) for pool in pools)

    def down(self, pools: Iterable[str], begin: float, end: float) -> bool:
        """Whether what was in any of the pools may have failed meanwhile."""
        return any(self._any(pool, begin, end, (Kind.DOWN,)) for pool in pools)

    def _any(self, pool: str, begin: float, end: float, kinds: tuple[Kind, ...]) -> bool:
        return any(
            each.begin <= end and each.end + GRACE_S >= begin and each.kind in kinds
            for each in self._intervals.get(pool, ())
        )

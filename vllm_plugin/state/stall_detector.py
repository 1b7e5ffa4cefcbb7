"""Detects an engine that has stopped stepping.

An API server answers as usual while its engine core hangs in a kernel or a collective call. The
symptom is that sequences are in the engine and no step is reported. A client that reads slowly
or is still sending its request keeps a call open without a sequence behind it: that is no stall.
Any report therefore accounts for all requests submitted before it; a report that crosses with a
request hides a stall until the next request arrives.

Times are seconds of one clock. A clock that is set forward can look like a stall until the next
step, one that is set back can hide a stall for as long.
"""

from __future__ import annotations

from collections import deque
from typing import Final

# No step of an online engine takes this long. A shorter limit would report a compilation on first
# use, or a burst on a shared machine, as a hang; a longer one would keep clients waiting in vain.
STALLED_AFTER_S: Final = 30.0
# Engines with long steps get more time: 20 times the expected duration of a decode step is beyond
# the outliers (a garbage collection, a preemption) seen on a shared machine.
STALLED_AFTER_STEPS: Final = 20
# So do engines with long prefill steps: three times the longest recent step, which contained the
# largest prompts, or a compilation.
STALLED_AFTER_LONGEST: Final = 3
RECENT_STEPS: Final = 16


class StallDetector:
    """The last report of the scheduler, and the requests that the next one must account for."""

    def __init__(self) -> None:
        self._reported_at_s = 0.0
        self._in_engine = 0
        self._unreported: dict[int, float] = {}  # submitted requests, with their times
        self._recent_s: deque[float] = deque(maxlen=RECENT_STEPS)

    def report(self, at_s: float, in_engine: int, step_s: float | None) -> None:
        """Takes a report: `in_engine` sequences; `step_s` is None when no step ran."""
        self._reported_at_s, self._in_engine = at_s, in_engine
        if self._unreported:
            self._unreported.clear()
        if step_s is not None:
            self._recent_s.append(step_s)

    def expect_report(self, key: int, at_s: float) -> None:
        """Expects a report from now on: this request was submitted to the engine."""
        self._unreported[key] = at_s

    def forget(self, key: int) -> None:
        """Expects nothing more for this request: it has left the engine."""
        self._unreported.pop(key, None)

    def restart(self, at_s: float) -> None:
        """Counts all waiting times from `at_s`: an engine that was suspended owed no step."""
        self._reported_at_s = at_s
        for key in self._unreported:
            self._unreported[key] = at_s

    def stalled(self, now_s: float, step_s: float) -> bool:
        """Returns whether a report is overdue; `step_s` is the expected duration of a step."""
        if self._in_engine:
            since_s = self._reported_at_s
        elif self._unreported:
            since_s = next(iter(self._unreported.values()))  # the oldest
        else:
            return False
        limit_s = max(
            STALLED_AFTER_S,
            STALLED_AFTER_STEPS * step_s,
            STALLED_AFTER_LONGEST * max(self._recent_s, default=0.0),
        )
        return now_s - since_s > limit_s

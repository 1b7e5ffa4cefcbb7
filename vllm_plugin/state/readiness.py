"""Decides whether the engine is ready: not while it is paused, asleep or changing weights, nor when
it has stopped stepping.

For the former two sources are combined, because neither is complete: calls of the admin routes,
which are known as they begin and distinguish sleep from a pause, and the engine's `is_sleeping`,
which is true for a pause too and also covers what was not requested over HTTP.

Stalls: an API server answers as usual while its engine core hangs in a kernel or a collective call.
The symptom is that sequences are in the engine and no step is reported. A client that reads slowly
or is still sending its request keeps a call open without a sequence behind it: that is no stall.
Any report therefore accounts for all requests submitted before it; a report that crosses with a
request hides a stall until the next request arrives. Times are seconds of one clock. A clock that
is set forward can look like a stall until the next step, one that is set back can hide a stall for
as long.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

READY: Final = "ready"
STALLED: Final = "stalled"
PAUSED: Final = "paused"
ASLEEP: Final = "asleep"

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


@dataclass(frozen=True, slots=True)
class NotReady:
    """Why the engine accepts no work: its `state` in `/v1/capabilities`, and a message."""

    state: str
    message: str


_PAUSED: Final = NotReady(PAUSED, "generation is paused; POST /resume, or /wake_up, ends it")
_ASLEEP: Final = NotReady(ASLEEP, "the engine is asleep; POST /wake_up ends it")
STALL: Final = NotReady(STALLED, "the engine has sequences, but has reported no step for too long")


class Readiness:
    """The admin calls in progress and the engine's latest answer."""

    def __init__(self) -> None:
        self._calls: dict[int, NotReady] = {}
        self._ended: set[int] = set()
        self._updates: set[int] = set()
        self._next = 0
        self._sleep_called = False
        self._sleeping = False  # the engine's answer

    def call_began(self, reason: NotReady) -> int:
        """Adds a call that suspends the engine. Returns the key for `call_ended`."""
        self._next += 1
        self._calls[self._next] = reason
        return self._next

    def call_ended(self, key: int) -> None:
        """Marks the call as ended. It counts until the engine has answered the next query."""
        self._ended.add(key)

    def update_began(self, key: int) -> None:
        """Keeps the call in effect until `update_ended`: it began an update of the weights."""
        self._updates.add(key)

    def update_ended(self) -> None:
        """Ends the calls that began an update of the weights."""
        self._ended |= self._updates
        self._updates.clear()

    def sleep_called(self) -> None:
        """Reports the engine as asleep until it answers that it is awake."""
        self._sleep_called = True

    def query_began(self) -> frozenset[int]:
        """Returns the calls that have ended so far, to be given to `query_answered`."""
        return frozenset(self._ended)

    def query_answered(self, ended: frozenset[int], *, sleeping: bool) -> None:
        """Takes the engine's answer, which accounts for calls `ended` before the query."""
        for key in ended:
            del self._calls[key]
        self._ended -= ended
        self._sleeping = sleeping
        if not sleeping:
            self._sleep_called = False

    @property
    def not_ready(self) -> NotReady | None:
        """Why the engine accepts no work; None while it does."""
        if self._calls:
            return next(reversed(self._calls.values()))
        if self._sleep_called:
            return _ASLEEP
        return _PAUSED if self._sleeping else None


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

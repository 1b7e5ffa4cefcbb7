"""Whether the engine still steps: what is in it, since when nothing was heard, and how long is
too long.

An API server answers as ever while its engine core hangs in a kernel or a collective call. What
shows is that sequences are in the engine and no step is reported. A reader that is slow, or a
client that is still sending its request, keeps a call open with no sequence behind it: that is
no stall. So any report settles what was submitted before it; one that crosses with a request on
its way hides a stall until the next request comes.

Pure; times are seconds of one clock. One that is set forward can look like a stall until the
next step, one that is set back can hide one for as long.
"""

from __future__ import annotations

from collections import deque
from typing import Final

# No step of an engine that serves people takes so long. Shorter would take a compilation on
# first use, or a neighbour's burst, for a hang; longer would leave clients waiting for nothing.
STALLED_AFTER_S: Final = 30.0
# An engine whose steps are long gets more: a decode step that takes 20 times what it should is
# beyond the outliers (a garbage collection, a preemption) seen on a machine with neighbours.
STALLED_AFTER_STEPS: Final = 20
# And so does one whose prefill steps are: three of the longest of late, which had the largest
# prompts, or a compilation, in it.
STALLED_AFTER_LONGEST: Final = 3
LATE_STEPS: Final = 16


class Pulse:
    """What was last heard of the scheduler, and what must be heard of next."""

    def __init__(self) -> None:
        self._heard_at_s = 0.0
        self._held = 0
        self._unheard: dict[int, float] = {}  # requests the scheduler must have, since when
        self._late: deque[float] = deque(maxlen=LATE_STEPS)

    def heard(self, at_s: float, held: int, step_s: float | None) -> None:
        """The scheduler reported that it holds so many sequences, perhaps after a step."""
        self._heard_at_s, self._held = at_s, held
        if self._unheard:
            self._unheard.clear()
        if step_s is not None:
            self._late.append(step_s)

    def submitted(self, key: int, at_s: float) -> None:
        """A request has come in whole: the scheduler will have something to report."""
        self._unheard[key] = at_s

    def left(self, key: int) -> None:
        """That request is gone."""
        self._unheard.pop(key, None)

    def held_up(self, at_s: float) -> None:
        """An operator holds the engine up: what it owes, it owes from now on."""
        self._heard_at_s = at_s
        for key in self._unheard:
            self._unheard[key] = at_s

    def stalled(self, now_s: float, step_s: float) -> bool:
        """Whether something should have been heard by now; `step_s`: a step as expected."""
        if self._held:
            since_s = self._heard_at_s
        elif self._unheard:
            since_s = next(iter(self._unheard.values()))  # the oldest
        else:
            return False
        limit_s = max(
            STALLED_AFTER_S,
            STALLED_AFTER_STEPS * step_s,
            STALLED_AFTER_LONGEST * max(self._late, default=0.0),
        )
        return now_s - since_s > limit_s

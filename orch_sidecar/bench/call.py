"""One request of a measurement, and what became of it.

Pure. Times are seconds since the start of the run, by one monotonic clock; None is never.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from orch_sidecar.facts.served import Served


class Fate(StrEnum):
    """What became of a request."""

    PENDING = "pending"
    ANSWERED = "answered"
    REFUSED = "refused"  # by status 429 or 503: nothing was generated
    FAILED = "failed"
    CUT = "cut"  # the run was ended before it was


@dataclass(slots=True)
class Call:
    """One request. `due_s`: when its schedule sent it; None where it was sent when there was room.

    `event_s`: when each event with something in it came; a token each, but for those that an
    engine puts into one. `why`: of a refusal or failure, the code or a few words.
    """

    due_s: float | None = None
    sent_s: float | None = None
    ended_s: float | None = None
    status: int | None = None
    fate: Fate = Fate.PENDING
    why: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    counted_by_events: bool = False  # nobody said how many tokens there were
    queue_ms: float | None = None
    event_s: array[float] = field(default_factory=lambda: array("d"))

    @property
    def arrived_s(self) -> float:
        """When it was due, else when it was sent: a late client makes nothing faster."""
        arrived = self.due_s if self.due_s is not None else self.sent_s
        assert arrived is not None  # it has begun
        return arrived

    @property
    def late_s(self) -> float:
        """How much later than due it was sent."""
        if self.due_s is None or self.sent_s is None:
            return 0.0
        return self.sent_s - self.due_s

    @property
    def gaps_s(self) -> list[float]:
        """Times between its events."""
        return [later - earlier for earlier, later in pairwise(self.event_s)]

    @property
    def served(self) -> Served | None:
        """As it counts for figures; None unless it was answered and its tokens are known."""
        if self.fate is not Fate.ANSWERED or self.ended_s is None:
            return None
        if self.input_tokens is None or self.output_tokens is None:
            return None
        first_s = self.event_s[0] if self.event_s else None
        return Served(self.arrived_s, first_s, self.ended_s, self.input_tokens, self.output_tokens)

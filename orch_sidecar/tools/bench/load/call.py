"""One request of a measurement, and what became of it; and how its client did.

Pure. Times are seconds since the start of the run, by one monotonic clock; None is never.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final

from orch_sidecar.tools.facts.evidence.figures import CompletedRequest

_TURNED_AWAY: Final = 429


class Fate(StrEnum):
    """What became of a request."""

    PENDING = "pending"
    ANSWERED = "answered"
    REFUSED = "refused"  # by status 429 or 503: nothing was generated
    FAILED = "failed"
    CUT = "cut"  # the run was ended before it was


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to be sent: all its bytes, and how many tokens prompt and answer are to have.

    None where only the engine can tell: a text's, or those of an answer that may end early.
    """

    message: bytes
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(slots=True)
class Call:
    """One request.

    `due_s`: when its schedule wanted it; None where it was sent when there was room, and then
    `free_s` is when there was. `sent_s`: when its client began to send it; where it takes a new
    connection, that is part of the answer's time. `event_s`: when each event with something in
    it came; a token each, but for those that an engine puts into one. `why`: of a refusal or
    failure, the code or a few words. `as_asked`: whether prompt and answer had as many tokens
    as they were to have. `connected`: there was a connection to send it on.
    """

    due_s: float | None = None
    free_s: float | None = None
    sent_s: float | None = None
    ended_s: float | None = None
    status: int | None = None
    fate: Fate = Fate.PENDING
    why: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    counted_by_events: bool = False  # nobody said how many tokens there were
    as_asked: bool = True
    connected: bool = False
    queue_ms: float | None = None
    event_s: array[float] = field(default_factory=lambda: array("d"))

    @property
    def arrived_s(self) -> float:
        """When it was due, else when it was sent: a late client makes nothing faster."""
        arrived = self.due_s if self.due_s is not None else self.sent_s
        assert arrived is not None  # it has begun
        return arrived

    @property
    def late_s(self) -> float | None:
        """How much later it was sent than it should have been; None if it never was."""
        should = self.due_s if self.due_s is not None else self.free_s
        return None if should is None or self.sent_s is None else self.sent_s - should

    @property
    def reached(self) -> bool:
        """Whether it may have reached the engine.

        What is answered 429 was turned away before; a 503 may be the engine's own word.
        """
        return self.connected and self.status != _TURNED_AWAY

    @property
    def gaps_s(self) -> list[float]:
        """Times between its events."""
        return [later - earlier for earlier, later in pairwise(self.event_s)]

    @property
    def served(self) -> CompletedRequest | None:
        """As it counts for figures; None unless it was answered and its length is known.

        A prompt of which nobody says the length counts as 0 tokens.
        """
        if self.fate is not Fate.ANSWERED or self.ended_s is None or self.output_tokens is None:
            return None
        first_s = self.event_s[0] if self.event_s else None
        return CompletedRequest(
            self.arrived_s, first_s, self.ended_s, self.input_tokens or 0, self.output_tokens
        )


@dataclass(frozen=True, slots=True)
class Pulse:
    """How the client itself did. `lag_s`: by how much its event loop woke later than it should,
    sampled all along. `cpu_share`: of one core."""

    lag_s: tuple[float, ...]
    cpu_share: float

"""Decides whether the engine accepts work: not while it is paused, asleep or changing weights.

Two sources are combined, because neither is complete: calls of the admin routes, which are known
as they begin and distinguish sleep from a pause, and the engine's `is_sleeping`, which is true for
a pause too and also covers what was not requested over HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

READY: Final = "ready"
STALLED: Final = "stalled"
PAUSED: Final = "paused"
ASLEEP: Final = "asleep"


@dataclass(frozen=True, slots=True)
class NotReady:
    """Why the engine accepts no work: its `state` in `/v1/capabilities`, and a message."""

    state: str
    message: str


_PAUSED: Final = NotReady(PAUSED, "generation is paused; POST /resume, or /wake_up, ends it")
_ASLEEP: Final = NotReady(ASLEEP, "the engine is asleep; POST /wake_up ends it")


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

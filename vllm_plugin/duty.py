"""Whether the engine takes work: it does not while an operator has paused it, put it to sleep or
changes its weights.

Two sources, because neither is complete: the calls of operators' routes, which are known first
and tell sleep from a pause, and the engine's own answer to "are you sleeping", which is true for
a pause as well and knows of what came another way. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

READY: Final = "ready"
STALLED: Final = "stalled"
PAUSED: Final = "paused"
ASLEEP: Final = "asleep"


@dataclass(frozen=True, slots=True)
class Hold:
    """Why the engine takes no work: its `state` in `/v1/capabilities`, and a sentence."""

    state: str
    message: str


_PAUSED: Final = Hold(PAUSED, "generation is paused; POST /resume, or /wake_up, ends it")
_ASLEEP: Final = Hold(ASLEEP, "the engine is asleep; POST /wake_up ends it")


class Duty:
    """What holds the engine up, of all that is known."""

    def __init__(self) -> None:
        self._calls: dict[int, Hold] = {}
        self._ended: set[int] = set()
        self._updates: set[int] = set()
        self._next = 0
        self._asleep = False  # by the calls that came
        self._sleeping = False  # by the engine's answer

    def began(self, hold: Hold) -> int:
        """A call that holds the engine up began. Returns the key for `ended`."""
        self._next += 1
        self._calls[self._next] = hold
        return self._next

    def ended(self, key: int) -> None:
        """That call has ended. It counts until the engine has been asked once more."""
        self._ended.add(key)

    def updating(self, key: int) -> None:
        """That call began an update of the weights, which lasts until `updated`."""
        self._updates.add(key)

    def updated(self) -> None:
        """The update of the weights has ended."""
        self._ended |= self._updates
        self._updates.clear()

    def slept(self) -> None:
        """A call put the engine to sleep, until it answers that it is awake."""
        self._asleep = True

    def asking(self) -> frozenset[int]:
        """The engine is about to be asked. Returns what `answered` takes."""
        return frozenset(self._ended)

    def answered(self, asked: frozenset[int], *, sleeping: bool) -> None:
        """The engine's answer; calls that had ended before it was asked are in it."""
        for key in asked:
            del self._calls[key]
        self._ended -= asked
        self._sleeping = sleeping
        if not sleeping:
            self._asleep = False

    @property
    def hold(self) -> Hold | None:
        """What holds the engine up; None while it takes work."""
        if self._calls:
            return next(reversed(self._calls.values()))
        if self._asleep:
            return _ASLEEP
        return _PAUSED if self._sleeping else None

"""Records of a run: each request with its outcome.

Times are seconds since the start of the run on one monotonic clock; None means never.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final

from orch_sidecar.tools.facts.labels import recorded
from vllm_plugin.contracts.profile import ServiceClass

# Times are in whole microseconds, as they are recorded.
TIME_DIGITS: Final = 6
_SHOWN: Final = 80  # characters of a server's message


class Fate(StrEnum):
    """The outcome of a request."""

    PENDING = "pending"
    ANSWERED = "answered"
    REFUSED = "refused"  # status 429 or 503: nothing was generated
    FAILED = "failed"
    CUT = "cut"  # cancelled because the run ended first


@dataclass(frozen=True, slots=True)
class Request:
    """A request ready to send: all its bytes, and the expected tokens of prompt and answer.

    A count is None where only the engine knows it: for a text, or an answer that may end early.
    `service_class`: the one that it asks for; None leaves it to the sidecar.
    """

    message: bytes
    input_tokens: int | None = None
    output_tokens: int | None = None
    service_class: ServiceClass | None = None


@dataclass(slots=True)
class Call(recorded.Call):
    """One request while it runs, and what only its client knows of it.

    `free_s`: without a schedule, when its client became free. `event_s`: arrival of each event with
    tokens, usually one token each. `length_as_requested`: whether prompt and answer had the
    expected numbers of tokens. `on_events`: called after each event, with whether it is the last.
    """

    fate: Fate = Fate.PENDING
    free_s: float | None = None
    counted_by_events: bool = False  # the response reported no token counts
    length_as_requested: bool = True
    event_s: array[float] = field(default_factory=lambda: array("d"))
    on_events: Callable[[bool], None] | None = None

    @property
    def late_s(self) -> float | None:
        """The delay between due (or free) and sent; None if it was never sent."""
        due_s = self.due_s if self.due_s is not None else self.free_s
        return None if due_s is None or self.sent_s is None else self.sent_s - due_s

    @property
    def gaps_s(self) -> list[float]:
        """The intervals between its events."""
        return [later - earlier for earlier, later in pairwise(self.event_s)]


def shown(text: str, most: int = _SHOWN) -> str:
    """Returns the beginning of a server's text as one line without control characters."""
    line = "".join(char if char.isprintable() else " " for char in text[: 4 * most])
    return " ".join(line.split())[:most]

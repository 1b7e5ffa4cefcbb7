"""Records of a run: each request with its outcome, and the health of the client process.

Times are seconds since the start of the run on one monotonic clock; None means never.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final

from orch_sidecar.tools.facts.labels import recorded
from orch_sidecar.tools.facts.labels.figures import CompletedRequest
from vllm_plugin.contracts.profile import ServiceClass

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
class Call:
    """One request and its outcome.

    `due_s`: its scheduled time. Without a schedule it is None, and `free_s` is when its client
    became free. `sent_s`: when sending began, which sets up a connection; None without one.
    `ended_s`: of an answer that was streamed, its last token, as in vLLM's bench and AIPerf; of
    any other, the end of the response. `event_s`: arrival of each event with tokens, usually one
    token each. `why`: error code or message of a refusal or failure. `length_as_requested`:
    whether prompt and answer had the expected numbers of tokens. `on_events`: called with it after
    each arrival of events.
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
    counted_by_events: bool = False  # the response reported no token counts
    length_as_requested: bool = True
    queue_ms: float | None = None
    service_class: ServiceClass | None = None
    event_s: array[float] = field(default_factory=lambda: array("d"))
    on_events: Callable[[Call], None] | None = None

    @property
    def late_s(self) -> float | None:
        """The delay between due (or free) and sent; None if it was never sent."""
        due_s = self.due_s if self.due_s is not None else self.free_s
        return None if due_s is None or self.sent_s is None else self.sent_s - due_s

    @property
    def reached(self) -> bool:
        """Whether it may have reached the engine: a 429 comes from a proxy, a 503 may not."""
        return self.sent_s is not None and self.status != recorded.TOO_MANY_REQUESTS

    @property
    def gaps_s(self) -> list[float]:
        """The intervals between its events."""
        return [later - earlier for earlier, later in pairwise(self.event_s)]

    @property
    def recorded(self) -> recorded.Call:
        """What a result has of it, with times in whole microseconds."""
        first_s = self.event_s[0] if self.event_s else None
        due_s, sent_s, first_s, ended_s = (
            None if at_s is None else round(at_s, 6)
            for at_s in (self.due_s, self.sent_s, first_s, self.ended_s)
        )
        return recorded.Call(
            *(due_s, sent_s, first_s, ended_s, self.status, self.fate.value, self.why),
            *(self.input_tokens, self.output_tokens, self.queue_ms, self.service_class),
        )

    @property
    def served(self) -> CompletedRequest | None:
        """The input of the figures; None unless it was answered and its length is known."""
        return self.recorded.served


def answered_of(calls: Iterable[Call]) -> int:
    """Returns how many of them were answered."""
    return sum(call.fate is Fate.ANSWERED for call in calls)


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """The load on the client process. `lag_s`: samples of how late its event loop woke up.
    `cpu_share`: its CPU time as a share of one core."""

    lag_s: tuple[float, ...] = ()
    cpu_share: float = 0.0


def shown(text: str, most: int = _SHOWN) -> str:
    """Returns the beginning of a server's text as one line without control characters."""
    line = "".join(char if char.isprintable() else " " for char in text[: 4 * most])
    return " ".join(line.split())[:most]

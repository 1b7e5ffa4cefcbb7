"""One request and its answer: what is known of it, for headers, metrics, spans and logs.

Pure values. Times are nanoseconds: `_ns` of the wall clock for spans, durations from the
monotonic clock.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.refusal import Reason
from vllm_plugin.profile import ServiceClass

# Long enough for a UUID with a prefix; the characters that are safe in headers, logs and URLs.
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

_BLOCK_BYTES: Final = 4096


class Outcome(StrEnum):
    """How an exchange ended, where no Reason says it."""

    OK = "ok"
    # The engine answered with 4xx: the request is wrong, and so it would be at any engine.
    CLIENT_ERROR = "client_error"
    # The engine answered, with 5xx or with an error within its stream.
    ENGINE_ERROR = "engine_error"
    CANCELLED = "cancelled"  # the client went away


@dataclass(slots=True)
class RequestRecord:
    """One request and its answer.

    What is said of its pool is that of the last pool it was with: `labels` are its span
    attributes, `placement` what decided for it. `queue_position`: how many were ahead of it when
    it began to wait (`queued`), and `predicted_start_ms` when it should have started from then;
    both are 0 for one that was admitted at once, None is unknown.

    `shared`: its decode is one that others may share, and counts for admission in its place.
    `coalesced`: that decode was another request's. `held_up`: its answer took the time of its
    client. `trace_id`: of its trace, 0 if that is not sampled. `scenario`: the run that it belongs
    to, if its client says so.
    """

    endpoint: Endpoint
    id: str  # ours, unguessable: X-Orch-Request-Id
    request_id: str  # the client's X-Request-Id, or ours
    correlation_id: str
    method: str = "POST"
    arrived: int = field(default_factory=time.monotonic_ns)
    arrived_ns: int = field(default_factory=time.time_ns)
    model: str = ""
    cost: int = 0
    stream: bool = False
    max_tokens: int | None = None
    pool: str | None = None
    labels: Mapping[str, Any] | None = None
    placement: str | None = None
    service_class: ServiceClass | None = None
    queue_position: int = 0
    predicted_start_ms: int | None = 0
    lease: str | None = None
    queued: int | None = None
    admitted: int | None = None
    first_byte: int | None = None
    status: int = 0
    outcome: Outcome | Reason = Outcome.CANCELLED
    shared: bool = False
    coalesced: bool = False
    input_tokens: int | None = None
    output_tokens: int | None = None
    held_up: bool = False
    scenario: str | None = None
    trace_id: int = 0

    def at_ns(self, monotonic: int) -> int:
        """The wall-clock time of a moment of this exchange."""
        return self.arrived_ns + monotonic - self.arrived

    def of_decode(self) -> RequestRecord:
        """An exchange for the decode that this one begins, and that others may share."""
        return RequestRecord(
            self.endpoint,
            self.id,
            self.request_id,
            self.correlation_id,
            self.method,
            self.arrived,
            self.arrived_ns,
            self.model,
            self.cost,
            self.stream,
            self.max_tokens,
            trace_id=self.trace_id,
        )

    def begin_again(self) -> None:
        """What was tried came to nothing, and its client knows nothing of that."""
        self.outcome = Outcome.CANCELLED  # until it is known otherwise
        self.queued = self.admitted = self.lease = None
        self.queue_position = self.predicted_start_ms = 0
        self.shared = self.coalesced = False

    def spent_ms(self) -> float:
        """Milliseconds since it arrived."""
        return (time.monotonic_ns() - self.arrived) / 1e6

    def server_timing(self) -> str:
        """`Server-Timing`: milliseconds in the queue, and to the first byte of a stream."""
        arrived, first_byte = self.arrived, self.first_byte
        admitted = arrived if self.admitted is None else self.admitted
        queue_ms = (admitted - arrived) / 1e6
        if first_byte is None:
            return f"queue;dur={queue_ms:.2f}"
        if self.stream:
            return f"queue;dur={queue_ms:.2f}, ttft;dur={(first_byte - arrived) / 1e6:.2f}"
        return f"queue;dur={queue_ms:.2f}, engine;dur={(first_byte - admitted) / 1e6:.2f}"


def accept_id(given: str | None) -> str | None:
    """A client's id if it is short and harmless enough to be echoed and logged."""
    return given if given is not None and _ID.fullmatch(given) else None


def new_ids() -> Iterator[str]:
    """Endlessly 128 random bits each, in hexadecimal: the system is asked once for many."""
    while True:
        block = os.urandom(_BLOCK_BYTES).hex()
        for at in range(0, len(block), 32):
            yield block[at : at + 32]

"""The record of one request: identity, timings, outcome; for headers, metrics, spans and logs.

Values only. Times are nanoseconds: `_ns` of the wall clock for spans, all others of the
monotonic clock.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.refusal import Reason
from vllm_plugin.contracts.profile import ServiceClass

# Long enough for a UUID with a prefix; the characters that are safe in headers, logs and URLs.
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

_BLOCK_BYTES: Final = 4096


class Outcome(StrEnum):
    """How a request ended; of one that this sidecar refused or failed, a Reason instead."""

    OK = "ok"
    # The engine answered with 4xx: any engine would reject this request.
    CLIENT_ERROR = "client_error"
    # The engine answered, with 5xx or with an error within its stream.
    ENGINE_ERROR = "engine_error"
    CANCELLED = "cancelled"  # the client went away


# Members once: to look one up in its enum takes long (Python 3.11).
OK: Final = Outcome.OK
CLIENT_ERROR: Final = Outcome.CLIENT_ERROR
ENGINE_ERROR: Final = Outcome.ENGINE_ERROR
CANCELLED: Final = Outcome.CANCELLED


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One request and its response, for headers, metrics, spans and logs.

    `endpoint`: by `unknown` if the path is not served. `id`: ours, unguessable
    (X-Orch-Request-Id). `request_id`: the client's X-Request-Id, or ours. `arrived`: nanoseconds
    of the monotonic clock; `arrived_ns`: the same moment on the wall clock. These never change.

    `pool`, `labels` (its span attributes) and `placement` (why that pool) are those of the last
    attempt, as are `queued`, `admitted` and `first_byte`, in nanoseconds of the monotonic clock.
    `queue_position`: how many were ahead when it was queued; `predicted_start_ms`: when it was
    expected to start from then on. Both are 0 for a request that was admitted immediately, None
    is unknown. `begin_attempt` resets what is of an attempt, and `copy_generation` copies what is
    of a generation that others share.

    `cached_tokens`: of the input, those that the prefix cache had; `reasoning_tokens`: of the
    output; None where the engine does not report them.
    `generated_tokens`: output tokens, estimated if not reported: of complete answers, and where a
    budget counts them.
    `rate_limits`: header fields about the budgets of its key; `key`: the name of that.

    `parts`: in so many parts it runs, 0 if as a whole; each of these has a record of its own.
    `shared`: its generation can serve other requests, too, and is the one that was admitted.
    `coalesced`: that generation was started by another request. `fanout`: how many requests the
    generation answers, on the record of the generation and of the request that started it; 0 where
    no other could share it. `client_limited`: the client's reading slowed the
    response down. `trace_id`: 16 bytes, none if the trace is not sampled. `scenario`: the benchmark
    run that the client declares; `run`: the digest of its secret id. `last_token`: when the last
    bytes with generated text, or with its end, were written to the client; of streams only.
    """

    endpoint: Endpoint
    id: str
    request_id: str
    correlation_id: str
    method: str
    arrived: int
    arrived_ns: int
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
    last_token: int | None = None
    status: int = 0
    outcome: Outcome | Reason = CANCELLED
    shared: bool = False
    coalesced: bool = False
    fanout: int = 0
    parts: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    generated_tokens: int | None = None
    rate_limits: tuple[tuple[str, str], ...] = ()
    client_limited: bool = False
    scenario: str | None = None
    run: str | None = None
    key: str | None = None
    trace_id: bytes = b""
    ended: bool = False

    def end(self, outcome: Outcome | Reason, status: int | None = None) -> None:
        """Sets the outcome, once. `status`: of a response that no engine gave."""
        assert not self.ended, f"the request {self.id} has ended before"
        self.ended = True
        self.outcome = outcome
        if status is not None:
            self.status = status

    def at_ns(self, monotonic: int) -> int:
        """Returns the wall-clock time of a moment of this request."""
        return self.arrived_ns + monotonic - self.arrived

    def seconds_to(self, monotonic: int | None) -> float | None:
        """Returns the seconds from the arrival to a moment; None if there was none."""
        return None if monotonic is None else (monotonic - self.arrived) / 1e9

    def ms_to(self, monotonic: int | None) -> float | None:
        """Returns the same in milliseconds, to a tenth, as pages and logs show it."""
        return None if monotonic is None else round((monotonic - self.arrived) / 1e6, 1)

    @property
    def tokens(self) -> int | None:
        """Output tokens, estimated where the engine did not report them; None: unknown."""
        return self.generated_tokens if self.output_tokens is None else self.output_tokens

    @property
    def trace_text(self) -> str | None:
        """The id of its trace in hexadecimal; None: the trace is not sampled."""
        return self.trace_id.hex() or None

    def of_generation(self) -> RequestRecord:
        """Returns the record of the generation that this request starts for others, too."""
        record = RequestRecord(
            self.endpoint, self.id, self.request_id, self.correlation_id,
            self.method, self.arrived, self.arrived_ns,
        )  # fmt: skip
        record.model, record.cost, record.stream = self.model, self.cost, self.stream
        record.max_tokens, record.trace_id = self.max_tokens, self.trace_id
        return record

    def copy_generation(self, generation: RequestRecord) -> None:
        """Copies what is known of the shared generation that answers this request."""
        self.pool, self.labels = generation.pool, generation.labels
        self.placement, self.service_class = generation.placement, generation.service_class
        self.lease = generation.lease
        self.input_tokens = generation.input_tokens
        self.output_tokens = generation.output_tokens
        self.cached_tokens = generation.cached_tokens
        self.reasoning_tokens = generation.reasoning_tokens
        self.generated_tokens = generation.generated_tokens
        if generation.queued is not None and self.admitted in (None, generation.admitted):
            self.queued = max(generation.queued, self.arrived)
            self.queue_position = generation.queue_position  # an upper bound for a late joiner
            predicted_ms = generation.predicted_start_ms
            if predicted_ms is not None:
                predicted_ms = max(0, predicted_ms - (self.queued - generation.queued) // 10**6)
            self.predicted_start_ms = predicted_ms

    def begin_attempt(self) -> None:
        """Forgets the attempt before: it failed, and the client has seen nothing of it."""
        self.queued = self.admitted = self.lease = None
        self.queue_position = self.predicted_start_ms = 0
        self.shared = self.coalesced = False
        self.fanout = 0

    def return_to_queue(self) -> None:
        """Records that it lost its slots and is queued again: since then, or since it arrived."""
        self.queued = self.queued or time.monotonic_ns()
        self.admitted = self.predicted_start_ms = None

    def spent_ms(self) -> float:
        """Returns the milliseconds since the request arrived."""
        return (time.monotonic_ns() - self.arrived) / 1e6

    def server_timing(self) -> bytes:
        """Returns `Server-Timing`: milliseconds from arrival to the slots, or until now if it
        waited and got none, and to the first byte."""
        arrived, first_byte, admitted = self.arrived, self.first_byte, self.admitted
        if admitted is None:
            admitted = arrived if self.queued is None else time.monotonic_ns()
        queue_ms = (admitted - arrived) / 1e6
        if first_byte is None:
            return b"queue;dur=%.2f" % queue_ms
        if self.stream:
            return b"queue;dur=%.2f, ttft;dur=%.2f" % (queue_ms, (first_byte - arrived) / 1e6)
        return b"queue;dur=%.2f, engine;dur=%.2f" % (queue_ms, (first_byte - admitted) / 1e6)


def accept_id(given: str | None) -> str | None:
    """Returns a client's id if it is short and safe enough to be echoed and logged."""
    return given if given is not None and _ID.fullmatch(given) else None


def new_ids() -> list[str]:
    """Returns many ids of 128 random bits in hexadecimal, of one system call."""
    return os.urandom(_BLOCK_BYTES).hex(" ", 16).split()

"""One trace: its ids, and its parts, which end at different times and leave together.

A request is a part, and so is a generation that it started for others, too: it may outlive the
request. A trace is handed over when its last part has ended, so that it arrives whole or not at
all; what cannot be encoded costs its own trace, and no other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from opentelemetry.sdk.trace.id_generator import IdGenerator

from orch_sidecar.api.headers import TRACEPARENT, TRACESTATE
from orch_sidecar.observability.otlp.encoder import Head, SpanEncoder, link, trace_state
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.observability.tracing import Headers, Lost

logger = logging.getLogger("orch.sidecar")

# Between two lines of the log about spans that cannot be encoded.
LOG_EVERY_S: Final = 20.0

_TRACEPARENT: Final = TRACEPARENT.encode()
_TRACESTATE: Final = TRACESTATE.encode()

# A method of the encoder, its head, and its last arguments.
Ended = tuple[Callable[..., bytes], Head, tuple[Any, ...]]


class Batcher(Protocol):
    """Takes encoded traces, and drops them if it must."""

    @property
    def full(self) -> bool: ...

    def offer(self, trace: bytes, spans: int) -> None: ...

    def drop(self, reason: Lost, spans: int) -> None: ...

    async def close(self, timeout_s: float) -> None: ...


class Exit:
    """Where traces leave: encoder and batcher, and the log of what cannot be encoded."""

    def __init__(self, encoder: SpanEncoder, batcher: Batcher) -> None:
        self.encoder = encoder
        self.batcher = batcher
        self._log_at = float("-inf")

    def note_invalid(self, error: Exception) -> None:
        """Logs that a trace cannot be encoded; its spans are counted."""
        now = time.monotonic()
        if now >= self._log_at:
            self._log_at = now + LOG_EVERY_S
            logger.warning("a trace is left out, it cannot be encoded: %s", error, exc_info=error)


class Identity:
    """The ids of a trace and of its server span, and its headers for the engine."""

    __slots__ = ("_flags", "_ids", "_state", "server_id", "trace_id")

    def __init__(self, ids: IdGenerator, trace_id: int, flags: int, state: str) -> None:
        """`flags` and `state`: of W3C Trace Context."""
        self._ids = ids
        self._flags = flags
        self._state = state
        self.trace_id = trace_id.to_bytes(16)
        self.server_id = ids.generate_span_id().to_bytes(8)

    @property
    def link(self) -> bytes:
        """Of another trace's span to this server span, encoded."""
        return link(self.trace_id, self.server_id)

    def new_span_id(self) -> bytes:
        return self._ids.generate_span_id().to_bytes(8)

    def headers(self, span_id: bytes) -> Headers:
        """Returns the headers for which that span is the parent."""
        text = f"00-{self.trace_id.hex()}-{span_id.hex()}-{self._flags:02x}"
        if self._state:
            return [(_TRACEPARENT, text.encode()), (_TRACESTATE, self._state.encode())]
        return [(_TRACEPARENT, text.encode())]


class TraceParts(Identity):
    """A sampled trace. `open`: its parts that have not ended."""

    __slots__ = ("_encoded", "_exit", "_lost", "_spans", "encoder", "open")

    def __init__(self, out: Exit, ids: IdGenerator, trace_id: int, flags: int, state: str) -> None:
        # As Identity does it: a call less for each request.
        self._ids = ids
        self._flags = flags
        self._state = state
        self.trace_id = trace_id.to_bytes(16)
        self.server_id = ids.generate_span_id().to_bytes(8)
        self._exit = out
        self.encoder = out.encoder
        self.open = 1
        self._encoded: list[bytes] = []
        self._spans = 0
        self._lost: Lost | None = None

    def part_ended(self, record: RequestRecord, ended: list[Ended]) -> None:
        """Encodes the spans of a part, and hands the trace over if it was the last one."""
        batcher = self._exit.batcher
        self._spans += len(ended)
        if self._lost is None:
            if batcher.full:
                self._lost = Lost.QUEUE_FULL
            else:
                self._encode(record, ended)
        self.open -= 1
        if self.open:
            return
        if self._lost is None:
            batcher.offer(b"".join(self._encoded), self._spans)
        else:
            batcher.drop(self._lost, self._spans)

    def _encode(self, record: RequestRecord, ended: list[Ended]) -> None:
        try:
            state = trace_state(self._state) if self._state else b""
            common = self.encoder.of_record(record)
            for encode, head, rest in ended:
                self._encoded.append(encode(common, head, state, *rest))
        except Exception as error:  # noqa: BLE001 - whatever a record has, its request has ended
            self._lost = Lost.INVALID
            self._exit.note_invalid(error)

"""One trace: its ids, and its parts, which end at different times and leave together.

A request is a part, and so is a generation that it started for others, too: it may outlive the
request. A trace is handed over when its last part has ended, so that it arrives whole or not at
all. It is encoded only when it is exported: one that is dropped costs nothing, and the next answer
does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from opentelemetry.sdk.trace.id_generator import IdGenerator

from orch_sidecar.api.headers import TRACEPARENT, TRACESTATE
from orch_sidecar.observability.otlp.encoder import Head, SpanEncoder, link, trace_state
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.observability.tracing import Headers

_TRACEPARENT: Final = TRACEPARENT.encode()
_TRACESTATE: Final = TRACESTATE.encode()

# A method of the encoder, its head, and its last arguments.
Ended = tuple[Callable[..., bytes], Head, tuple[Any, ...]]


class Batcher(Protocol):
    """Takes traces whose parts have all ended, and drops them if it must."""

    def offer(self, trace: TraceParts, spans: int) -> None: ...

    async def close(self, timeout_s: float) -> None: ...


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

    __slots__ = ("_batcher", "_parts", "_spans", "encoder", "open")

    def __init__(
        self,
        encoder: SpanEncoder,
        batcher: Batcher,
        ids: IdGenerator,
        trace_id: int,
        flags: int,
        state: str,
    ) -> None:
        # As Identity does it: a call less for each request.
        self._ids = ids
        self._flags = flags
        self._state = state
        self.trace_id = trace_id.to_bytes(16)
        self.server_id = ids.generate_span_id().to_bytes(8)
        self.encoder = encoder
        self._batcher = batcher
        self.open = 1
        self._parts: list[tuple[RequestRecord, list[Ended]]] = []
        self._spans = 0

    def part_ended(self, record: RequestRecord, ended: list[Ended]) -> None:
        """Takes the spans of a part. The trace is handed over if it was the last one."""
        self._spans += len(ended)
        self._parts.append((record, ended))
        self.open -= 1
        if not self.open:
            self._batcher.offer(self, self._spans)

    def encode(self) -> bytes:
        """Encodes all its spans. Raises what the encoder does for values that OTLP cannot have."""
        encoder, encoded = self.encoder, []
        state = trace_state(self._state) if self._state else b""
        for record, ended in self._parts:
            common = encoder.of_record(record)
            encoded += [encode(common, head, state, *rest) for encode, head, rest in ended]
        return b"".join(encoded)

"""The traces of requests: ids and sampling, and which spans there are from when to when.

Of OpenTelemetry's SDK it uses the sampler, asked once per trace for the server span, the generator
of ids, and the propagator, where a client sent a context. Nothing is encoded of a trace that is not
sampled, or that the batcher drops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, DEFAULT_ON, Decision, Sampler
from opentelemetry.trace import SpanKind, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.span import SpanContext

from orch_sidecar.api.headers import TRACEPARENT, TRACESTATE
from orch_sidecar.api.refusal import Reason
from orch_sidecar.observability.otlp.attributes import Attributes
from orch_sidecar.observability.otlp.encoder import (
    LOCAL_PARENT,
    REMOTE_PARENT,
    SpanEncoder,
)
from orch_sidecar.observability.otlp.trace_parts import (
    Batcher,
    Ended,
    Identity,
    TraceParts,
)
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.observability.tracing import Headers, SpanCounts, Trace

# Flags of W3C Trace Context.
_SAMPLED, _RANDOM = 1, 2

_SERVER: Final = SpanKind.SERVER
_RECORD_AND_SAMPLE: Final = Decision.RECORD_AND_SAMPLE
_NO_CONTEXT: Final = Context()

# Within which the spans that wait are sent when the sidecar stops.
SHUTDOWN_S: Final = 5.0


class _Unsampled:
    """A trace that nobody records. The engine learns that it is not sampled."""

    __slots__ = ("_identity",)

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    @property
    def link(self) -> bytes:
        return self._identity.link

    def dispatched(self) -> Headers:
        identity = self._identity
        return identity.headers(identity.new_span_id())

    def retried(self, reason: Reason) -> None:
        return

    def shared(self, record: RequestRecord) -> Trace:
        return self

    def joined(self, generation: Trace) -> None:
        return

    def ended(self) -> None:
        return


class _EngineSpans:
    """The spans of admission and engine, one after the other, within a server span."""

    __slots__ = ("_ended", "_engine", "_record", "_trace", "_waiting_since")

    def __init__(self, trace: TraceParts, record: RequestRecord, waiting_since: int) -> None:
        self._trace = trace
        self._record = record
        self._waiting_since: int | None = waiting_since  # None if it is not queued
        # Id, start, labels and lease of the attempt that runs.
        self._engine: tuple[bytes, int, Attributes, str | None] | None = None
        self._ended: list[Ended] = []

    @property
    def link(self) -> bytes:
        return self._trace.link

    def dispatched(self) -> Headers:
        record, trace = self._record, self._trace
        start = record.admitted
        start_ns = time.time_ns() if start is None else record.at_ns(start)
        if self._waiting_since is not None:
            outcome = record.outcome.value if start is None else None
            self._end_wait(self._waiting_since, start_ns, outcome)
        span_id = trace.new_span_id()
        self._engine = span_id, start_ns, trace.encoder.labels_of(record), record.lease
        return trace.headers(span_id)

    def retried(self, reason: Reason) -> None:
        if self._engine is None:
            return  # it is still queued
        self._waiting_since = time.monotonic_ns()
        encode, more = self._trace.encoder.failed_attempt, (reason.value,)
        self._end_engine(self._engine, time.time_ns(), encode, more)

    def shared(self, record: RequestRecord) -> Trace:
        raise AssertionError("a shared generation cannot be shared again")

    def joined(self, generation: Trace) -> None:
        raise AssertionError("a shared generation cannot join another")

    def ended(self) -> None:
        """Ends the trace of a shared generation."""
        self._trace.part_ended(self._record, self._close(time.time_ns()))

    def _close(self, now_ns: int) -> list[Ended]:
        """Returns all spans, in the order of their ends."""
        if self._waiting_since is not None:
            self._end_wait(self._waiting_since, now_ns, self._record.outcome.value)
        if self._engine is not None:
            self._end_engine(self._engine, now_ns, self._trace.encoder.engine, ())
        return self._ended

    def _end_wait(self, since: int, end_ns: int, outcome: str | None) -> None:
        record, trace = self._record, self._trace
        if not record.cost:
            return
        self._waiting_since = None
        encoder, span_id = trace.encoder, trace.new_span_id()
        start_ns = record.at_ns(since)
        head = trace.trace_id, span_id, trace.server_id, start_ns, end_ns, LOCAL_PARENT
        more = encoder.labels_of(record), record.cost, outcome
        self._ended.append((encoder.wait, head, more))

    def _end_engine(
        self,
        engine: tuple[bytes, int, Attributes, str | None],
        end_ns: int,
        encode: Callable[..., bytes],
        more: tuple[str, ...],
    ) -> None:
        self._engine = None
        trace, (span_id, start_ns, labels, lease) = self._trace, engine
        head = trace.trace_id, span_id, trace.server_id, start_ns, end_ns, LOCAL_PARENT
        self._ended.append((encode, head, (labels, lease, *more)))


class _RequestSpans(_EngineSpans):
    """The spans of one request: those of admission and engine, and the server span."""

    __slots__ = ("_links", "_parent", "_shares")

    def __init__(self, trace: TraceParts, record: RequestRecord, parent: SpanContext | None):
        # As _EngineSpans does it: a call less for each request.
        self._trace = trace
        self._record = record
        self._waiting_since = record.identity.arrived
        self._engine = None
        self._ended = []
        self._parent = parent
        self._links: tuple[bytes, ...] = ()
        # It shares a generation, whose own trace has the spans of admission and engine.
        self._shares = False

    def dispatched(self) -> Headers:
        if self._shares:  # the shared generation failed
            self._shares = False
            self._waiting_since = time.monotonic_ns()
        return super().dispatched()

    def shared(self, record: RequestRecord) -> Trace:
        self._share()
        self._trace.open += 1
        return _EngineSpans(self._trace, record, record.identity.arrived)

    def joined(self, generation: Trace) -> None:
        assert isinstance(generation, _EngineSpans | _Unsampled)
        self._share()
        self._links += (generation.link,)

    def ended(self) -> None:
        trace, record, parent = self._trace, self._record, self._parent
        now_ns = time.time_ns()
        ended = self._ended if self._shares else self._close(now_ns)
        parent_id, flags = None, LOCAL_PARENT
        if parent is not None:
            parent_id = parent.span_id.to_bytes(8)
            flags = REMOTE_PARENT if parent.is_remote else LOCAL_PARENT
        start_ns = record.identity.arrived_ns
        head = trace.trace_id, trace.server_id, parent_id, start_ns, now_ns, flags
        ended.append((trace.encoder.server, head, (self._links,)))
        trace.part_ended(record, ended)

    def _share(self) -> None:
        """Begins to share a generation. What has ended before remains."""
        self._shares = True
        self._engine = None


class SpanTracing:
    """Begins traces, and hands those that have ended to a batcher."""

    def __init__(
        self,
        encoder: SpanEncoder,
        batcher: Batcher,
        spans: SpanCounts,
        sampler: Sampler,
        ids: IdGenerator,
    ) -> None:
        """`spans`: in which the batcher counts."""
        self.spans: SpanCounts | None = spans
        self._unplaced = encoder.unplaced
        self._sampler = sampler
        # Without a parent these always sample: calling them would cost as much as a span does.
        self._samples_roots = sampler in (ALWAYS_ON, DEFAULT_ON)
        self._ids = ids
        # Older releases of the SDK do not know the flag.
        self._random = _RANDOM if getattr(ids, "is_trace_id_random", bool)() else 0
        self._propagator = TraceContextTextMapPropagator()
        self._encoder = encoder
        self._batcher = batcher

    def begin(self, record: RequestRecord, headers: Mapping[str, str]) -> Trace:
        if TRACEPARENT in headers:
            context, parent = self._given(headers)
        else:
            context, parent = _NO_CONTEXT, None
        if parent is None:
            trace_id, flags = self._ids.generate_trace_id(), self._random
        else:
            trace_id, flags = parent.trace_id, parent.trace_flags & _RANDOM
        sampled, state = True, ""
        if parent is not None or not self._samples_roots:
            path = record.identity.endpoint.path
            result = self._sampler.should_sample(
                context, trace_id, path, _SERVER, self._unplaced, ()
            )
            sampled = result.decision is _RECORD_AND_SAMPLE
            state = result.trace_state.to_header() if result.trace_state else ""
        if not sampled:
            return _Unsampled(Identity(self._ids, trace_id, flags, state))
        record.trace_id = trace_id
        trace = TraceParts(
            self._encoder, self._batcher, self._ids, trace_id, flags | _SAMPLED, state
        )
        return _RequestSpans(trace, record, parent)

    def _given(self, headers: Mapping[str, str]) -> tuple[Context, SpanContext | None]:
        """Returns the context that the client sent, and its span; None if that is invalid."""
        names = (TRACEPARENT, TRACESTATE)
        carrier = {name: headers[name] for name in names if name in headers}
        context = self._propagator.extract(carrier)
        given = get_current_span(context).get_span_context()
        return context, given if given.is_valid else None

    async def shutdown(self) -> None:
        await self._batcher.close(SHUTDOWN_S)

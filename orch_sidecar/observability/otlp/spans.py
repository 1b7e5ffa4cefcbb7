"""Builds the traces of requests: their ids, sampling, spans, and the times of these.

Of OpenTelemetry's SDK it uses the sampler, asked once per trace for the server span, the generator
of ids, and the propagator, where a client sent a context. Nothing is encoded of a trace that is not
sampled, or that the batcher drops. A trace is handed over when its last part has ended, so that it
arrives whole or not at all: a request is a part, and so is a generation that it started for others,
too, which may outlive it. It is encoded when it is exported: the next answer does not wait for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from struct import iter_unpack
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, DEFAULT_ON, Decision, Sampler
from opentelemetry.trace import SpanKind, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.span import SpanContext

from orch_sidecar.api.headers import TRACEPARENT, TRACESTATE
from orch_sidecar.api.refusal import Reason
from orch_sidecar.observability.otlp.attributes import Attributes
from orch_sidecar.observability.otlp.batcher import SpanBatcher
from orch_sidecar.observability.otlp.encoder import (
    LOCAL_PARENT,
    REMOTE_PARENT,
    Head,
    SpanEncoder,
    link,
    parent_field,
    state_field,
)
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.observability.tracing import Headers, SpanCounts, Trace, Tracing

# Flags of W3C Trace Context, and their text.
_SAMPLED, _RANDOM = 1, 2
_FLAGS: Final = ("00", "01", "02", "03")

_TRACEPARENT: Final = TRACEPARENT.encode()
_TRACESTATE: Final = TRACESTATE.encode()
_SERVER: Final = SpanKind.SERVER
_RECORD_AND_SAMPLE: Final = Decision.RECORD_AND_SAMPLE
_NO_CONTEXT: Final = Context()

# Within which the spans that wait are sent when the sidecar stops.
SHUTDOWN_S: Final = 5.0

# A method of the encoder, the head of its span, and the rest of its arguments.
_Ended = tuple[Callable[..., bytes], Head, tuple[Any, ...]]

_FRESH_IDS: Final = 512


class SpanIds:
    """Makes random ids of spans, many at once."""

    __slots__ = ("_fresh",)

    def __init__(self) -> None:
        self._fresh: list[bytes] = []

    def new(self) -> bytes:
        """Returns an id; not by a call of the object, which takes twice the time."""
        if not self._fresh:
            self._fresh = [each for (each,) in iter_unpack("8s", os.urandom(8 * _FRESH_IDS))]
        return self._fresh.pop()


class _Identified(Trace):
    """A trace with ids; by itself one that is not sampled, which the engine learns.

    `trace_id`, `server_id`: of the trace and of its server span. `_flags`, `_state`: of W3C Trace
    Context.
    """

    __slots__ = ("_flags", "_span_id", "_state", "_trace", "server_id", "trace_id")

    def identify(self, trace_id: int, flags: int, state: str, span_id: Callable[[], bytes]) -> None:
        """Sets the ids, once. `span_id`: makes those of spans."""
        self.trace_id = trace_id.to_bytes(16)
        self._trace = self.trace_id.hex()
        self._flags = _FLAGS[flags]
        self._state = state
        self._span_id = span_id
        self.server_id = span_id()

    def dispatched(self) -> Headers:
        return self._headers(self._span_id())

    def _headers(self, span_id: bytes) -> Headers:
        """Returns the headers for which that span is the parent."""
        parent = f"00-{self._trace}-{span_id.hex()}-{self._flags}".encode()
        if self._state:
            return [(_TRACEPARENT, parent), (_TRACESTATE, self._state.encode())]
        return [(_TRACEPARENT, parent)]


class _Part(_Identified):
    """The spans of admission and engine of one record, one after the other.

    `_since`: since when it waits, None where it does not. Of the attempt that runs: `_wait_id` and
    `_engine_id`, None where it has no such span, `_start_ns`, where the one ends and the other
    begins, and its labels and lease. `_ended`: all other spans.
    """

    __slots__ = (
        "_encoder", "_ended", "_engine_id", "_labels", "_lease", "_record", "_since",
        "_start_ns", "_wait_id", "_waited_since",
    )  # fmt: skip

    # Set as it is dispatched.
    _waited_since: int
    _start_ns: int
    _labels: Attributes
    _lease: str | None

    def _begin(self, encoder: SpanEncoder, record: RequestRecord) -> None:
        self._encoder = encoder
        self._record = record
        self._since: int | None = record.identity.arrived
        self._wait_id: bytes | None = None
        self._engine_id: bytes | None = None
        self._ended: list[_Ended] = []

    def dispatched(self) -> Headers:
        record, since, start = self._record, self._since, self._record.admitted
        if self._wait_id is not None:
            self._end_wait()
        identity = record.identity
        if start is None:
            self._start_ns = time.time_ns()
        else:
            self._start_ns = identity.arrived_ns + start - identity.arrived
        self._labels = self._encoder.labels_of(record)
        self._lease = record.lease
        if since is not None and record.cost:
            self._waited_since, self._since = since, None
            self._wait_id = self._span_id()
        self._engine_id = span_id = self._span_id()
        return self._headers(span_id)

    def retried(self, reason: Reason) -> None:
        if self._engine_id is None:
            return  # it is still queued
        self._since = time.monotonic_ns()
        self._end_attempt(time.time_ns(), self._encoder.failed_attempt, reason.value)

    def _close(self, now_ns: int) -> None:
        """Ends what has not ended."""
        record = self._record
        if self._engine_id is not None:
            self._end_attempt(now_ns, self._encoder.engine)
        if self._since is not None and record.cost:
            start_ns, labels = record.at_ns(self._since), self._encoder.labels_of(record)
            head = self._head(self._span_id(), start_ns, now_ns)
            self._ended.append((self._encoder.wait, head, (labels, record.outcome.value)))

    def _end_attempt(self, end_ns: int, encode: Callable[..., bytes], *more: str) -> None:
        if self._wait_id is not None:
            self._end_wait()
        assert self._engine_id is not None
        head = self._head(self._engine_id, self._start_ns, end_ns)
        self._ended.append((encode, head, (self._labels, self._lease, *more)))
        self._engine_id = None

    def _end_wait(self) -> None:
        assert self._wait_id is not None
        head = self._head(self._wait_id, self._record.at_ns(self._waited_since), self._start_ns)
        self._ended.append((self._encoder.wait, head, (self._labels,)))
        self._wait_id = None

    def _head(self, span_id: bytes, start_ns: int, end_ns: int) -> Head:
        parent = parent_field(self.server_id)
        return self.trace_id, span_id, parent, start_ns, end_ns, LOCAL_PARENT


class _Generation(_Part):
    """The part of a trace that is a shared generation, or a part of a divided request."""

    __slots__ = ("_request",)

    def __init__(self, request: RequestTrace, record: RequestRecord) -> None:
        self.trace_id, self.server_id = request.trace_id, request.server_id
        self._trace, self._flags, self._state = request._trace, request._flags, request._state
        self._span_id = request._span_id
        self._begin(request._encoder, record)
        self._request = request

    def ended(self) -> None:
        self._close(time.time_ns())
        self._request._part_ended(self._record, self._ended)


class RequestTrace(_Part):
    """A sampled trace: the server span of a request, and its parts."""

    __slots__ = ("_batcher", "_ended_ns", "_links", "_open", "_parent", "_parts", "_shares")

    def __init__(
        self,
        encoder: SpanEncoder,
        batcher: SpanBatcher,
        record: RequestRecord,
        parent: SpanContext | None,
    ) -> None:
        self._begin(encoder, record)
        self._batcher = batcher
        self._parent = parent
        self._ended_ns = 0
        self._links: tuple[bytes, ...] = ()
        # It shares a generation, whose own part has the spans of admission and engine.
        self._shares = False
        # Its parts that have not ended, and those that have; none of these: the usual three spans.
        self._open = 1
        self._parts: list[tuple[RequestRecord, list[_Ended]]] = []

    def dispatched(self) -> Headers:
        if self._shares:  # the shared generation failed
            self._shares = False
            self._since = time.monotonic_ns()
        return _Part.dispatched(self)  # `super()` would take longer than an id

    def shared(self, record: RequestRecord) -> Trace:
        self._share()
        self._open += 1
        return _Generation(self, record)

    def joined(self, generation: Trace) -> None:
        assert isinstance(generation, _Identified)
        self._share()
        self._links += (link(generation.trace_id, generation.server_id),)

    def _share(self) -> None:
        """Begins to share a generation. What has ended before remains."""
        self._shares = True
        self._engine_id = None
        if self._wait_id is not None:
            self._end_wait()

    def ended(self) -> None:
        self._ended_ns = now_ns = time.time_ns()
        usual = self._wait_id is not None and self._engine_id is not None and not self._ended
        if usual and self._open == 1 and not (self._parts or self._links):
            self._batcher.offer(self, 3)
            return
        if not self._shares:
            self._close(now_ns)
        start_ns, trace_id = self._record.identity.arrived_ns, self.trace_id
        of_parent, flags = self._given()
        head = trace_id, self.server_id, of_parent, start_ns, now_ns, flags
        self._ended.append((self._encoder.server, head, (self._links,)))
        self._part_ended(self._record, self._ended)

    def _part_ended(self, record: RequestRecord, ended: list[_Ended]) -> None:
        """Takes the spans of a part. The trace is handed over if it was the last one."""
        self._parts.append((record, ended))
        self._open -= 1
        if not self._open:
            self._batcher.offer(self, sum(len(each) for _, each in self._parts))

    def _given(self) -> tuple[bytes, int]:
        """Returns the field of the server span's parent, and the flags."""
        parent = self._parent
        if parent is None:
            return b"", LOCAL_PARENT
        flags = REMOTE_PARENT if parent.is_remote else LOCAL_PARENT
        return parent_field(parent.span_id.to_bytes(8)), flags

    def encode(self) -> bytes:
        """Encodes all its spans. Raises what the encoder does for values that OTLP cannot have."""
        record, state = self._record, state_field(self._state) if self._state else b""
        if not self._parts:
            assert self._wait_id is not None
            assert self._engine_id is not None
            return self._encoder.usual(
                record,
                self._labels,
                self._lease,
                (self.trace_id, self.server_id, self._wait_id, self._engine_id),
                (record.at_ns(self._waited_since), self._start_ns, self._ended_ns),
                (*self._given(), state),
            )
        encoded = []
        for record, ended in self._parts:
            common = self._encoder.of_record(record, state)
            encoded += [encode(common, head, *rest) for encode, head, rest in ended]
        return b"".join(encoded)


class SpanTracing(Tracing):
    """Begins traces, and hands those that have ended to a batcher."""

    def __init__(
        self,
        encoder: SpanEncoder,
        batcher: SpanBatcher,
        spans: SpanCounts,
        sampler: Sampler,
        ids: IdGenerator,
        span_id: Callable[[], bytes] | None = None,
    ) -> None:
        """`spans`: in which the batcher counts. `ids`: of traces; `span_id`: of spans."""
        self.spans = spans
        self._unplaced = encoder.unplaced
        self._sampler = sampler
        # Without a parent these always sample: calling them would cost as much as a span does.
        self._samples_roots = sampler in (ALWAYS_ON, DEFAULT_ON)
        self._ids = ids
        self._span_id = span_id or SpanIds().new
        # Older releases of the SDK do not know the flag.
        self._random = _RANDOM if getattr(ids, "is_trace_id_random", bool)() else 0
        self._propagator = TraceContextTextMapPropagator()
        self._encoder = encoder
        self._batcher = batcher

    def begin(self, record: RequestRecord, headers: Mapping[str, str]) -> Trace:
        parent: SpanContext | None = None
        given = _NO_CONTEXT
        if TRACEPARENT in headers:
            given, parent = self._given(headers)
        if parent is None:
            trace_id, flags = self._ids.generate_trace_id(), self._random
        else:
            trace_id, flags = parent.trace_id, parent.trace_flags & _RANDOM
        sampled, state = True, ""
        if parent is not None or not self._samples_roots:
            path = record.identity.endpoint.path
            result = self._sampler.should_sample(given, trace_id, path, _SERVER, self._unplaced, ())
            sampled = result.decision is _RECORD_AND_SAMPLE
            state = result.trace_state.to_header() if result.trace_state else ""
        trace: _Identified
        if sampled:
            record.trace_id, flags = trace_id, flags | _SAMPLED
            trace = RequestTrace(self._encoder, self._batcher, record, parent)
        else:
            trace = _Identified()
        trace.identify(trace_id, flags, state, self._span_id)
        return trace

    def _given(self, headers: Mapping[str, str]) -> tuple[Context, SpanContext | None]:
        """Returns the context that the client sent, and its span; None if that is invalid."""
        names = (TRACEPARENT, TRACESTATE)
        carrier = {name: headers[name] for name in names if name in headers}
        context = self._propagator.extract(carrier)
        given = get_current_span(context).get_span_context()
        return context, given if given.is_valid else None

    async def shutdown(self) -> None:
        await self._batcher.close(SHUTDOWN_S)

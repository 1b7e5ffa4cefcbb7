"""Builds the traces of requests: their ids, sampling, spans, and the times of these.

Of OpenTelemetry's SDK it uses the sampler, asked once per trace for the server span, the generator
of ids, and the propagator, where a client sent a context. Nothing is encoded of a trace that is not
sampled, or that the batcher drops. A trace is handed over when its last part has ended, so that it
arrives whole or not at all: a request is a part, and so is a generation that it started for others,
too, which may outlive it. It is encoded when it is exported: the next answer does not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
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
from orch_sidecar.observability.otlp.delivery import SpanBatcher
from orch_sidecar.observability.otlp.encoder import (
    NO_PARENT,
    ChildIds,
    Head,
    RequestIds,
    SpanEncoder,
    link,
    parent_fields,
    state_field,
)
from orch_sidecar.observability.otlp.ids import (
    random_children,
    random_spans,
    request_ids,
    requests_of,
)
from orch_sidecar.observability.record import RequestRecord
from orch_sidecar.observability.tracing import SpanCounts, Trace, Tracing

# Flags of W3C Trace Context, and how `traceparent` ends with them.
_SAMPLED: Final = 1
_RANDOM: Final = 2
_ENDS: Final = ("-00\r\n", "-01\r\n", "-02\r\n", "-03\r\n")

_SERVER: Final = SpanKind.SERVER
_RECORD_AND_SAMPLE: Final = Decision.RECORD_AND_SAMPLE
_NO_CONTEXT: Final = Context()

# Within which the spans that wait are sent when the sidecar stops.
SHUTDOWN_S: Final = 5.0

# A method of the encoder, the head of its span, and the rest of its arguments.
_Ended = tuple[Callable[..., bytes], Head, tuple[Any, ...]]


def _header_end(flags: int, state: str) -> str:
    """Returns how the header lines of a trace context end, after the id of the parent."""
    return f"{_ENDS[flags]}{TRACESTATE}: {state}\r\n" if state else _ENDS[flags]


class _Identified(Trace):
    """A trace with ids; by itself one that is not sampled, which the engine learns.

    `trace_id`, `server_id`: of the trace and of its server span. `_span_ids`: those of its other
    spans. `_state`: of W3C Trace Context. `_end`: of the header lines, after the id of the parent.
    """

    __slots__ = ("_end", "_span_ids", "_state", "server_id", "trace_id")

    def __init__(self, ids: RequestIds, flags: int, state: str, span_ids: Iterator[bytes]) -> None:
        self.trace_id, of_server = ids
        self.server_id = of_server[:8]
        self._end = _header_end(flags, state)
        self._state = state
        self._span_ids = span_ids

    def dispatched(self) -> str:
        return self._lines(next(self._span_ids))

    def _lines(self, span_id: bytes) -> str:
        """Returns the header lines for which that span is the parent."""
        return f"traceparent: 00-{self.trace_id.hex()}-{span_id.hex()}{self._end}"


class _Part(_Identified):
    """The spans of admission and engine of one record, one after the other.

    `_since`: since when it waits, None where it does not. Of the attempt that runs: `_wait_id` and
    `_engine_id`, None where it has no such span, `_start_ns`, where the one ends and the other
    begins, and its labels and lease. `_ended`: all other spans. `_shares`: it shares a generation,
    whose own part has the spans of admission and engine.
    """

    __slots__ = (
        "_ended", "_engine_id", "_labels", "_lease", "_record", "_shares", "_since", "_start_ns",
        "_tracing", "_wait_id", "_waited_since",
    )  # fmt: skip

    # Set as it is dispatched.
    _waited_since: int
    _start_ns: int
    _labels: Attributes
    _lease: str | None

    def _begin(self, tracing: SpanTracing, record: RequestRecord) -> None:
        self._tracing = tracing
        self._record = record
        self._since: int | None = record.arrived
        self._wait_id: bytes | None = None
        self._engine_id: bytes | None = None
        self._ended: tuple[_Ended, ...] = ()
        self._shares = False

    def dispatched(self) -> str:
        record = self._record
        if self._shares:  # the shared generation failed
            self._shares = False
            self._since = time.monotonic_ns()
        if self._wait_id is not None:
            self._end_wait()
        self._read_attempt()
        if self._since is not None and record.cost:
            self._waited_since, self._since = self._since, None
            self._wait_id = next(self._span_ids)
        self._engine_id = span_id = next(self._span_ids)
        return self._lines(span_id)

    def _read_attempt(self) -> None:
        """Reads what its record has of the attempt that runs."""
        record = self._record
        start = record.admitted
        self._start_ns = time.time_ns() if start is None else record.at_ns(start)
        self._labels = self._tracing.encoder.labels_of(record)
        self._lease = record.lease

    def retried(self, reason: Reason) -> None:
        if self._engine_id is None:
            return  # it is still queued
        self._since = time.monotonic_ns()
        self._end_attempt(time.time_ns(), self._tracing.encoder.failed_attempt, reason.value)

    def _close(self, now_ns: int) -> None:
        """Ends what has not ended."""
        record = self._record
        if self._engine_id is not None:
            self._end_attempt(now_ns, self._tracing.encoder.engine)
        if self._since is not None and record.cost:
            start_ns, labels = record.at_ns(self._since), self._tracing.encoder.labels_of(record)
            head = self._head(next(self._span_ids), start_ns, now_ns)
            self._ended += ((self._tracing.encoder.wait, head, (labels, record.outcome.value)),)

    def _end_attempt(self, end_ns: int, encode: Callable[..., bytes], *more: str) -> None:
        if self._wait_id is not None:
            self._end_wait()
        assert self._engine_id is not None
        head = self._head(self._engine_id, self._start_ns, end_ns)
        self._ended += ((encode, head, (self._labels, self._lease, *more)),)
        self._engine_id = None

    def _end_wait(self) -> None:
        assert self._wait_id is not None
        head = self._head(self._wait_id, self._record.at_ns(self._waited_since), self._start_ns)
        self._ended += ((self._tracing.encoder.wait, head, (self._labels,)),)
        self._wait_id = None

    def _head(self, span_id: bytes, start_ns: int, end_ns: int) -> Head:
        return self.trace_id, span_id, start_ns, end_ns, parent_fields(self.server_id)


class _Generation(_Part):
    """The part of a trace that is a shared generation, or a part of a divided request."""

    __slots__ = ("_request",)

    def __init__(self, request: RequestTrace, record: RequestRecord) -> None:
        self.trace_id, self.server_id = request.trace_id, request.server_id
        self._end, self._state = request._end, request._state
        self._span_ids = request._span_ids
        self._begin(request._tracing, record)
        self._request = request

    def ended(self) -> None:
        self._close(time.time_ns())
        self._request._part_ended(self._record, self._ended)


class RequestTrace(_Part):
    """A sampled trace: the server span of a request, and its parts.

    A usual one has the three spans of a request that was admitted and dispatched once, alone. It
    only has ids, and reads the rest from its record when it is encoded. Whatever else happens
    unfolds it: from then on it keeps its spans one by one.

    `_given`: the encoded parent of the server span. `_child_ids`: of the spans of admission and
    engine of a usual one, None before it is dispatched; empty where it is unfolded. `_open`: how
    many of its parts have not ended; `_parts`: those that have.
    """

    __slots__ = (
        "_child_ids", "_ended_ns", "_given", "_ids", "_links", "_open", "_parts",
    )  # fmt: skip

    _ended_ns: int  # set at the end
    _open: int  # set when it is unfolded, like the rest
    _links: tuple[bytes, ...]
    _parts: tuple[tuple[RequestRecord, tuple[_Ended, ...]], ...]

    def __init__(
        self,
        tracing: SpanTracing,
        record: RequestRecord,
        ids: RequestIds,
        end: str,
        given: bytes = NO_PARENT,
    ) -> None:
        """`end`: of the header lines, after the id of the parent. `given`: `parent_fields`."""
        self._ids = ids
        self._end = end
        self._tracing = tracing
        self._record = record
        self._given = given
        self._child_ids: ChildIds | tuple[()] | None = None

    def dispatched(self) -> str:
        record = self._record
        if self._child_ids is not None or record.lease is None or not record.cost:
            self.unfold()
            return super().dispatched()
        self._child_ids = child_ids = next(self._tracing.child_ids)
        return f"traceparent: 00-{self._ids[0].hex()}-{child_ids[2].hex()}{self._end}"

    def retried(self, reason: Reason) -> None:
        self.unfold()
        super().retried(reason)

    def unfold(self, state: str = "") -> None:
        """Begins to keep its spans one by one. `state`: of W3C Trace Context."""
        if self._child_ids == ():
            return
        child_ids, self._child_ids = self._child_ids, ()
        self._state, self._span_ids = state, self._tracing.span_ids
        self.trace_id, of_server = self._ids
        self.server_id = of_server[:8]
        self._begin(self._tracing, self._record)
        self._open, self._links, self._parts = 1, (), ()
        if child_ids:
            self._wait_id, self._engine_id = child_ids[0][2:10], child_ids[2]
            self._waited_since, self._since = self._record.arrived, None
            self._read_attempt()

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
        self.unfold()
        self._shares = True
        self._engine_id = None
        if self._wait_id is not None:
            self._end_wait()

    def ended(self) -> None:
        tracing = self._tracing
        self._ended_ns = now_ns = time.time_ns()
        if self._child_ids:
            tracing.queue.offer(self, 3)
            return
        self.unfold()
        if not self._shares:
            self._close(now_ns)
        head = self.trace_id, self.server_id, self._record.arrived_ns, now_ns, self._given
        self._ended += ((tracing.encoder.server, head, (self._links,)),)
        self._part_ended(self._record, self._ended)

    def _part_ended(self, record: RequestRecord, ended: tuple[_Ended, ...]) -> None:
        """Takes the spans of a part. The trace is handed over if it was the last one."""
        self._parts += ((record, ended),)
        self._open -= 1
        if not self._open:
            self._tracing.queue.offer(self, sum(len(each) for _, each in self._parts))

    def encode(self) -> bytes:
        """Encodes all its spans. Raises what the encoder does for values that OTLP cannot have."""
        encoder, child_ids = self._tracing.encoder, self._child_ids
        if child_ids:
            return encoder.usual(self._record, self._ids, child_ids, self._ended_ns, self._given)
        encoded, state = [], state_field(self._state)
        for record, ended in self._parts:
            common = encoder.of_record(record, state)
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
    ) -> None:
        """`spans`: in which the batcher counts. `ids`: of traces."""
        self.spans = spans
        self.encoder = encoder
        self.batcher = batcher
        self.queue = batcher.queue
        self.ids = requests_of(ids)
        self.span_ids, self.child_ids = random_spans(), random_children()
        self._sampler = sampler
        # Without a parent these always sample: calling them would cost as much as a span does.
        self._samples_roots = sampler in (ALWAYS_ON, DEFAULT_ON)
        # Older releases of the SDK do not know the flag.
        self._random = _RANDOM if getattr(ids, "is_trace_id_random", bool)() else 0
        self._end = _ENDS[self._random | _SAMPLED]
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, record: RequestRecord, headers: Mapping[str, str]) -> Trace:
        if TRACEPARENT in headers:
            return self._begin_within(record, *self._given(headers))
        if not self._samples_roots or self.encoder.limited:
            return self._begin_within(record, _NO_CONTEXT, None)
        ids = next(self.ids)
        record.trace_id = ids[0]
        return RequestTrace(self, record, ids, self._end)

    def _begin_within(
        self, record: RequestRecord, given: Context, parent: SpanContext | None
    ) -> Trace:
        """Begins a trace if the sampler takes it. `given`: the context that the client sent;
        `parent`: its span."""
        if parent is None:
            ids, flags = next(self.ids), self._random
        else:
            ids = request_ids(parent.trace_id.to_bytes(16), next(self.span_ids))
            flags = parent.trace_flags & _RANDOM
        sampled, state = True, ""
        if parent is not None or not self._samples_roots:
            path, unplaced = record.endpoint.path, self.encoder.unplaced
            number = int.from_bytes(ids[0])
            result = self._sampler.should_sample(given, number, path, _SERVER, unplaced, ())
            sampled = result.decision is _RECORD_AND_SAMPLE
            state = result.trace_state.to_header() if result.trace_state else ""
        if not sampled:
            return _Identified(ids, flags, state, self.span_ids)
        record.trace_id = ids[0]
        fields = NO_PARENT
        if parent is not None:
            fields = parent_fields(parent.span_id.to_bytes(8), remote=parent.is_remote)
        trace = RequestTrace(self, record, ids, _header_end(flags | _SAMPLED, state), fields)
        if state or self.encoder.limited:
            trace.unfold(state)
        return trace

    def _given(self, headers: Mapping[str, str]) -> tuple[Context, SpanContext | None]:
        """Returns the context that the client sent, and its span; None if that is invalid."""
        names = (TRACEPARENT, TRACESTATE)
        carrier = {name: headers[name] for name in names if name in headers}
        context = self._propagator.extract(carrier)
        given = get_current_span(context).get_span_context()
        return context, given if given.is_valid else None

    async def shutdown(self) -> None:
        await self.batcher.close(SHUTDOWN_S)

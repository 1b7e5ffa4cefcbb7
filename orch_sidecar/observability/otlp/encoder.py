"""Encodes the spans of a finished request as OTLP (opentelemetry/proto/trace/v1/trace.proto).

Pure. Spans: `{route}` (server), and its children, one after the other, `admission.wait` and
`engine.request` (client; the parent of vLLM's `llm_request`). What is equal for many requests is
encoded once. Where limits may drop or cut attributes, the slow way is taken.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from orch_sidecar.observability.otlp import attributes as spans
from orch_sidecar.observability.otlp.attributes import Attributes, Limits
from orch_sidecar.observability.otlp.protobuf import (
    FIRST,
    SPAN_ATTRIBUTE,
    VARINTS,
    attributes,
    sized,
    varint,
)
from orch_sidecar.observability.record import Outcome, RequestRecord
from vllm_plugin.contracts.lease_protocol import short_lease

WAIT_SPAN: Final = "admission.wait"
ENGINE_SPAN: Final = "engine.request"

# More than any span has: the labels of a pool and its class, and what `attributes` sets.
MAX_ATTRIBUTES: Final = 32

# Of pools, classes, routes and outcomes; a client chooses model and method, hence the bound.
_MAX_PREPARED: Final = 512

# Fields of Span: ids of the trace and the span, start and end in nanoseconds, flags; of a child
# also its parent.
_ROOT: Final = struct.Struct("<2s16s2s8scQcQ6s")
_CHILD: Final = struct.Struct("<2s16s2s8s2s8scQcQ6s")
_PARENT_BYTES: Final = _CHILD.size - _ROOT.size
_TRACE_ID, _SPAN_ID, _PARENT = b"\x0a\x10", b"\x12\x08", b"\x22\x08"
_START, _END = b"\x39", b"\x41"
_NAME, _KIND, _STATUS = b"\x2a", b"\x30", b"\x7a"
_DROPPED_ATTRIBUTES, _LINK, _DROPPED_LINKS = b"\x50", b"\x6a", b"\x70"
_VARINTS: Final = len(VARINTS)  # a length below that is looked up without a call
# Field of ScopeSpans, and of the messages around it.
_SPAN, _SCHEMA_URL = b"\x12", b"\x1a"

_INTERNAL, _SERVER, _CLIENT = (_KIND + varint(kind) for kind in (1, 2, 3))

# SpanFlags: whether the parent is remote is known, and that it is.
LOCAL_PARENT: Final = 0x100
REMOTE_PARENT: Final = 0x300
_FLAGS: Final = {
    flags: b"\x85\x01" + struct.pack("<I", flags) for flags in (LOCAL_PARENT, REMOTE_PARENT)
}
_OF_CHILD: Final = _FLAGS[LOCAL_PARENT]
_TRACE_STATE: Final = b"\x1a"
_LINK_FLAGS: Final = b"\x35" + struct.pack("<I", LOCAL_PARENT)


# What every span has: the trace's id, its own, the field of its parent; start and end; flags.
Head = tuple[bytes, bytes, bytes, int, int, int]


class _Prepared(NamedTuple):
    """What is equal for all requests of a pool, class, route, model and outcome.

    `labels`: part of the key by its identity, which is not reused while it is here. `wait`: of a
    request that was admitted; `wait_begin`: the tag and the length of that span.
    """

    labels: Attributes
    wait: bytes
    wait_begin: bytes
    server: bytes
    engine: bytes


class RecordAttributes(NamedTuple):
    """What the spans of a record have in common: once, for `engine` and `server`.

    `state`: of `state_field`. `prepared` and `own`: encoded attributes; None and empty where limits
    make each span differ.
    """

    record: RequestRecord
    state: bytes
    labels: Attributes
    prepared: _Prepared | None
    own: bytes


class SpanEncoder:
    """Encodes spans, each as a field of ScopeSpans.

    `common`: of `of_record`. `labels`: the attributes of the pool and
    class when the span began.
    """

    def __init__(self, unplaced: Attributes, limits: Limits = Limits()) -> None:  # noqa: B008 - immutable
        """`unplaced`: attributes of the spans of requests without a pool."""
        self.unplaced = dict(unplaced)
        self._limits = limits
        most = limits.attributes
        self._limited = limits.value_chars is not None or (
            most is not None and most < MAX_ATTRIBUTES
        )
        self._prepared: dict[tuple[object, ...], _Prepared] = {}

    def labels_of(self, record: RequestRecord) -> Attributes:
        """Returns the attributes of its pool and class."""
        return self.unplaced if record.labels is None else record.labels

    def of_record(self, record: RequestRecord, state: bytes) -> RecordAttributes:
        """Encodes the attributes of a record that has ended."""
        labels = self.labels_of(record)
        if self._limited:
            return RecordAttributes(record, state, labels, None, b"")
        prepared = self._prepare(record, labels)
        return RecordAttributes(record, state, labels, prepared, spans.own(record))

    def usual(
        self,
        record: RequestRecord,
        labels: Attributes,
        lease: str | None,
        trace_id: bytes,
        server_id: bytes,
        wait_id: bytes,
        engine_id: bytes,
        admitted_ns: int,
        ended_ns: int,
        parent: bytes,
        flags: int,
    ) -> bytes:
        """Encodes the three spans of a request that was admitted once, and answered by an engine.

        `labels`, `lease`: of its attempt. `parent`: the field of the server span's parent; `flags`:
        its flags. The trace has no state.
        """
        arrived_ns = record.arrived_ns
        if self._limited or labels is not record.labels:
            common, own_parent = self.of_record(record, b""), _PARENT + server_id
            wait = trace_id, wait_id, own_parent, arrived_ns, admitted_ns, LOCAL_PARENT
            engine = trace_id, engine_id, own_parent, admitted_ns, ended_ns, LOCAL_PARENT
            server = trace_id, server_id, parent, arrived_ns, ended_ns, flags
            return b"%b%b%b" % (
                self.wait(common, wait, labels),
                self.engine(common, engine, labels, lease),
                self.server(common, server),
            )
        _, of_wait, wait_begin, of_server, of_engine = self._prepare(record, labels)
        own, child = spans.own(record), _CHILD.pack
        of_lease = b"" if lease is None else spans.own_of_engine(lease)
        streamed = record.stream or record.last_token is not None
        own_of_server = spans.own_of_server(record) if streamed else b""
        size = _ROOT.size + len(own)
        engine_size = size + _PARENT_BYTES + len(of_engine) + len(of_lease)
        server_size = size + len(parent) + len(of_server) + len(own_of_server)
        return b"".join(
            (
                wait_begin,
                child(_TRACE_ID, trace_id, _SPAN_ID, wait_id, _PARENT, server_id,
                      _START, arrived_ns, _END, admitted_ns, _OF_CHILD),
                of_wait,
                _SPAN, VARINTS[engine_size] if engine_size < _VARINTS else varint(engine_size),
                child(_TRACE_ID, trace_id, _SPAN_ID, engine_id, _PARENT, server_id,
                      _START, admitted_ns, _END, ended_ns, _OF_CHILD),
                of_engine, of_lease, own,
                _SPAN, VARINTS[server_size] if server_size < _VARINTS else varint(server_size),
                _ROOT.pack(_TRACE_ID, trace_id, _SPAN_ID, server_id,
                           _START, arrived_ns, _END, ended_ns, _FLAGS[flags]),
                parent, of_server, own, own_of_server,
            )
        )  # fmt: skip

    def wait(
        self, common: RecordAttributes, head: Head, labels: Attributes, outcome: str | None = None
    ) -> bytes:
        """Encodes a span of admission. `outcome`: if it was not admitted."""
        record, state, now, prepared, _ = common
        if outcome is None and prepared is not None and labels is now:
            return _span(head, state, prepared.wait)
        steps = [{**labels, "orch.cost": record.cost}]
        if outcome is not None:
            steps.append({"orch.outcome": outcome})
        return _span(head, state, self._slowly(WAIT_SPAN, _INTERNAL, steps))

    def failed_attempt(
        self,
        common: RecordAttributes,
        head: Head,
        labels: Attributes,
        lease: str | None,
        reason: str,
    ) -> bytes:
        """Encodes a span of the engine for an attempt after which the request was retried."""
        steps = [labels, _lease(lease), {"orch.outcome": reason, "error.type": reason}]
        return _span(head, common.state, self._slowly(ENGINE_SPAN, _CLIENT, steps, reason))

    def engine(
        self, common: RecordAttributes, head: Head, labels: Attributes, lease: str | None
    ) -> bytes:
        """Encodes the span of the engine for the last attempt."""
        record, state, now, prepared, own = common
        if prepared is None or labels is not now:
            steps = [labels, _lease(lease), spans.of_record(record, now), spans.of_error(record)]
            return _span(head, state, self._slowly(ENGINE_SPAN, _CLIENT, steps, _error_of(record)))
        of_lease = b"" if lease is None else spans.own_of_engine(lease)
        return _span(head, state, prepared.engine, of_lease, own)

    def server(self, common: RecordAttributes, head: Head, links: Sequence[bytes] = ()) -> bytes:
        """Encodes the span of the whole request. `links`: of `link`."""
        linked = self._linked(links) if links else b""
        record, state, now, prepared, own = common
        if prepared is None:
            steps = [self.unplaced, spans.of_server(record), spans.of_record(record, now)]
            steps.append(spans.of_error(record))
            name, error = record.endpoint.path, _error_of(record)
            return _span(head, state, linked, self._slowly(name, _SERVER, steps, error))
        return _span(head, state, linked, prepared.server, own, spans.own_of_server(record))

    def _prepare(self, record: RequestRecord, labels: Attributes) -> _Prepared:
        key = (
            id(labels), record.endpoint, record.method, record.outcome, record.status,
            record.cost, record.stream, record.model, record.placement, record.coalesced,
            record.parts, record.scenario, record.run,
        )  # fmt: skip
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) >= _MAX_PREPARED:
                self._prepared.clear()
            fixed = spans.constant(record, labels) | spans.of_error(record)
            of_server = [self.unplaced, spans.of_server(record), fixed]
            for name in (spans.LAST_TOKEN, spans.FIRST_CHUNK):
                of_server[1].pop(name, None)
            error = _error_of(record)
            of_wait = self._slowly(WAIT_SPAN, _INTERNAL, [{**labels, "orch.cost": record.cost}])
            wait_size = _CHILD.size + len(of_wait)
            prepared = _Prepared(
                labels,
                of_wait,
                _SPAN + varint(wait_size),
                self._slowly(record.endpoint.path, _SERVER, of_server, error),
                self._slowly(ENGINE_SPAN, _CLIENT, [fixed], error),
            )
            if len(record.model) <= spans.MAX_MODEL_CHARS:  # none as long as a body is kept
                self._prepared[key] = prepared
        return prepared

    def _slowly(
        self, name: str, kind: bytes, steps: Iterable[Attributes], error: str | None = None
    ) -> bytes:
        """Encodes name, kind, attributes and status. `error`: if the status is an error."""
        kept, dropped = spans.bounded(steps, self._limits)
        message = b"" if error is None else sized(b"\x12", error.encode()) + b"\x18\x02"
        return b"%b%b%b%b%b" % (
            sized(_NAME, name.encode()),
            kind,
            attributes(SPAN_ATTRIBUTE, kept.items()),
            _DROPPED_ATTRIBUTES + varint(dropped) if dropped else b"",
            sized(_STATUS, message),
        )

    def _linked(self, links: Sequence[bytes]) -> bytes:
        most = self._limits.links
        dropped = 0 if most is None else max(0, len(links) - most)
        kept = b"".join(links[dropped:])
        return kept + _DROPPED_LINKS + varint(dropped) if dropped else kept


def _lease(lease: str | None) -> dict[str, str]:
    return {} if lease is None else {spans.LEASE: short_lease(lease)}


def _error_of(record: RequestRecord) -> str | None:
    """Returns the description of the error status; None if the outcome is no error."""
    outcome = record.outcome
    good = outcome is Outcome.OK or outcome in spans.CLIENT_OUTCOMES
    return None if good else outcome.value


def _span(head: Head, *parts: bytes) -> bytes:
    """Encodes a span. Raises struct.error for a time beyond 64 bits."""
    trace_id, span_id, parent, start_ns, end_ns, flags = head
    root = _ROOT.pack(
        _TRACE_ID, trace_id, _SPAN_ID, span_id, _START, start_ns, _END, end_ns, _FLAGS[flags]
    )
    content = b"".join((root, parent, *parts))
    return b"".join((_SPAN, varint(len(content)), content))


def parent_field(span_id: bytes) -> bytes:
    """Encodes the parent of a span."""
    return _PARENT + span_id


def state_field(header: str) -> bytes:
    """Encodes the trace state of a span, from the form that it has in a header."""
    return sized(_TRACE_STATE, header.encode()) if header else b""


def link(trace_id: bytes, span_id: bytes) -> bytes:
    """Encodes a link of a span to another of this process."""
    return sized(_LINK, b"\x0a\x10%b\x12\x08%b%b" % (trace_id, span_id, _LINK_FLAGS))


def request_encoder(
    resource: Attributes, schema_url: str, scope: str
) -> Callable[[Sequence[bytes]], bytes]:
    """Returns what makes one ExportTraceServiceRequest of encoded spans.

    Raises ValueError, OverflowError or TypeError for a resource that cannot be encoded.
    """
    of_resource = sized(FIRST, attributes(FIRST, resource.items()))
    of_scope = sized(FIRST, sized(FIRST, scope.encode()))
    url = sized(_SCHEMA_URL, schema_url.encode()) if schema_url else b""

    def request(traces: Sequence[bytes]) -> bytes:
        size = len(of_scope) + sum(map(len, traces))
        scope_spans = b"\x12" + varint(size) + of_scope
        size += len(scope_spans) - len(of_scope) + len(of_resource) + len(url)
        return b"".join([FIRST, varint(size), of_resource, scope_spans, *traces, url])

    return request

"""Encodes the spans of a finished request as OTLP (opentelemetry/proto/trace/v1/trace.proto).

Pure. Spans: `{route}` (server), and its children, one after the other, `admission.wait` and
`engine.request` (client; the parent of vLLM's `llm_request`). What is equal for many requests is
encoded once. Where limits may drop or cut attributes, the slow way is taken.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from orch_sidecar.observability.otlp import attributes as spans
from orch_sidecar.observability.otlp.attributes import Attributes, Limits
from orch_sidecar.observability.otlp.protobuf import (
    FIRST,
    SPAN_ATTRIBUTE,
    attributes,
    before_text,
    sized,
    varint,
)
from orch_sidecar.observability.record import Outcome, RequestRecord
from vllm_plugin.contracts.lease_protocol import SHOWN_CHARACTERS, short_lease

WAIT_SPAN: Final = "admission.wait"
ENGINE_SPAN: Final = "engine.request"

# More than any span has: the labels of a pool and its class, and what `attributes` sets.
MAX_ATTRIBUTES: Final = 32

# Of pools, classes, routes and outcomes; a client chooses model and method, hence the bound.
_MAX_PREPARED: Final = 512
# Also by the lengths of ids and numbers. A client may choose the ids.
_MAX_SHAPES: Final = 1024

# Fields of Span: ids of the trace and the span, start and end in nanoseconds; its parent follows.
# Tags one by one: a compiled module looks up names that were unpacked.
_HEAD: Final = struct.Struct("<2s16s2s8scQcQ")
TRACE_ID: Final = b"\x0a\x10"
SPAN_ID: Final = b"\x12\x08"
_PARENT: Final = b"\x22\x08"
START: Final = b"\x39"
_END: Final = b"\x41"
_NAME, _KIND, _STATUS = b"\x2a", b"\x30", b"\x7a"
_DROPPED_ATTRIBUTES, _LINK, _DROPPED_LINKS = b"\x50", b"\x6a", b"\x70"
# Field of ScopeSpans, and of the messages around it.
_SPAN: Final = b"\x12"
_SCHEMA_URL: Final = b"\x1a"

# The spans of a usual trace, with the sizes of what differs: admission's, the engine's, the
# server's.
_USUAL: Final = (
    "<{}s26s11sQcQ"
    "{}s26s11sQcQ"
    "{}s{}s{}s"
    "{}s26scQcQ"
    "{}s{}s{}s{}s"
)  # fmt: skip

_INTERNAL, _SERVER, _CLIENT = (_KIND + varint(kind) for kind in (1, 2, 3))

# SpanFlags: whether the parent is remote is known, and that it is.
_LOCAL: Final = struct.pack("<I", 0x100)
_REMOTE: Final = struct.pack("<I", 0x300)
_SPAN_FLAGS: Final = b"\x85\x01"
# What a span without a parent has instead of `parent_fields`.
NO_PARENT: Final = _SPAN_FLAGS + _LOCAL
_CHILD_BYTES: Final = _HEAD.size + len(NO_PARENT) + len(_PARENT) + 8
_TRACE_STATE: Final = b"\x1a"
_LINK_FLAGS: Final = b"\x35" + _LOCAL


# What every span has: the trace's id, its own, start and end; `parent_fields`.
Head = tuple[bytes, bytes, int, int, bytes]

# Ids of a usual trace, with the tags of what is around them: of the trace, alone, and of its
# server span, followed by that of the trace; of the spans of admission and engine, each followed
# by the tag of the start, and of the latter alone.
RequestIds = tuple[bytes, bytes]
ChildIds = tuple[bytes, bytes, bytes]


class _Prepared(NamedTuple):
    """What is equal for all requests of a pool, class, route, model and outcome.

    `labels`: part of the key by its identity, which is not reused while it is here. `wait`: of a
    request that was admitted.
    """

    labels: Attributes
    wait: bytes
    server: bytes
    engine: bytes


class _Shape:
    """The usual trace with fields of these sizes: what packs it, and what does not differ.

    `wait_begin`: up to the id of the server span in the first span. `engine_begin`: from the first
    span's flags up to the same in the second; `of_engine`: from its flags up to its lease;
    `server_begin`, `of_server`.
    """

    __slots__ = (
        "engine_begin", "labels", "of_engine", "of_server", "pack", "server_begin", "wait_begin",
    )  # fmt: skip

    def __init__(
        self, prepared: _Prepared, lease: int, own: int, given: int, own_of_server: int
    ) -> None:
        self.labels, wait, self.of_server, engine = prepared
        self.of_engine = NO_PARENT + engine + before_text(spans.LEASE, lease)
        engine_size = _CHILD_BYTES - len(NO_PARENT) + len(self.of_engine) + lease + own
        server_size = _HEAD.size + given + len(self.of_server) + own + own_of_server
        self.wait_begin = _SPAN + varint(_CHILD_BYTES + len(wait)) + _PARENT
        self.engine_begin = NO_PARENT + wait + _SPAN + varint(engine_size) + _PARENT
        self.server_begin = _SPAN + varint(server_size) + SPAN_ID
        sizes = (
            len(self.wait_begin), len(self.engine_begin), len(self.of_engine), lease, own,
            len(self.server_begin), given, len(self.of_server), own, own_of_server,
        )  # fmt: skip
        self.pack: Callable[..., bytes] = struct.Struct(_USUAL.format(*sizes)).pack


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
        self.limited = limits.value_chars is not None or (
            most is not None and most < MAX_ATTRIBUTES
        )
        self._prepared: dict[tuple[object, ...], _Prepared] = {}
        self._shapes: dict[tuple[object, ...], _Shape] = {}

    def labels_of(self, record: RequestRecord) -> Attributes:
        """Returns the attributes of its pool and class."""
        return self.unplaced if record.labels is None else record.labels

    def of_record(self, record: RequestRecord, state: bytes) -> RecordAttributes:
        """Encodes the attributes of a record that has ended."""
        labels = self.labels_of(record)
        if self.limited:
            return RecordAttributes(record, state, labels, None, b"")
        prepared = self._prepare(record, labels)
        return RecordAttributes(record, state, labels, prepared, spans.own(record))

    def usual(
        self,
        record: RequestRecord,
        ids: RequestIds,
        child_ids: ChildIds,
        ended_ns: int,
        given: bytes,
    ) -> bytes:
        """Encodes the three spans of a request that was admitted once, and answered by an engine.

        `given`: `parent_fields` of the server span. The trace has no state, and nothing is
        limited.
        """
        of_trace, (of_wait, of_engine, _) = ids[1], child_ids
        lease, admitted_at = record.lease, record.admitted
        assert lease is not None
        assert admitted_at is not None
        # Objects once: a compiled module makes one for each use of an integer.
        arrived: object = record.arrived_ns
        admitted: object = record.arrived_ns + (admitted_at - record.arrived)
        ended: object = ended_ns
        own, of_lease = spans.own(record), lease[:SHOWN_CHARACTERS].encode()
        streamed = record.stream or record.last_token is not None
        own_of_server = spans.own_of_server(record) if streamed else b""
        key = (
            record.pool, record.service_class, record.endpoint, record.method, record.outcome,
            record.status, record.cost, record.stream, record.model, record.placement,
            record.coalesced, record.parts, record.scenario, record.run,
            len(of_lease), len(own), len(given), len(own_of_server),
        )  # fmt: skip
        shape = self._shapes.get(key)
        if shape is None or shape.labels is not record.labels:
            shape = self._new_shape(key, record)
        return shape.pack(
            shape.wait_begin, of_trace, of_wait, arrived, _END, admitted,
            shape.engine_begin, of_trace, of_engine, admitted, _END, ended,
            shape.of_engine, of_lease, own,
            shape.server_begin, of_trace, START, arrived, _END, ended,
            given, shape.of_server, own, own_of_server,
        )  # fmt: skip

    def _new_shape(self, key: tuple[Any, ...], record: RequestRecord) -> _Shape:
        """Makes the usual trace of such records. `key`: ends with the sizes of what differs."""
        assert record.labels is not None
        shape = _Shape(self._prepare(record, record.labels), *key[-4:])
        if len(self._shapes) >= _MAX_SHAPES:
            self._shapes.clear()
        if len(record.model) <= spans.MAX_MODEL_CHARS:  # none as long as a body is kept
            self._shapes[key] = shape
        return shape

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
        of_lease = attributes(SPAN_ATTRIBUTE, _lease(lease).items())
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
        key = (  # an outcome by its identity: Python hashes a member of an enum slowly
            id(labels), record.endpoint, record.method, id(record.outcome), record.status,
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
            prepared = _Prepared(
                labels,
                of_wait,
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
    trace_id, span_id, start_ns, end_ns, parent = head
    ids = _HEAD.pack(TRACE_ID, trace_id, SPAN_ID, span_id, START, start_ns, _END, end_ns)
    content = b"".join((ids, parent, *parts))
    return b"".join((_SPAN, varint(len(content)), content))


def parent_fields(span_id: bytes, *, remote: bool = False) -> bytes:
    """Encodes the parent of a span. `remote`: it is of another process."""
    return b"%b%b%b%b" % (_PARENT, span_id, _SPAN_FLAGS, _REMOTE if remote else _LOCAL)


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
        size = sum(map(len, traces)) + len(of_scope)
        scope_spans = b"\x12" + varint(size) + of_scope
        size += len(scope_spans) - len(of_scope) + len(of_resource) + len(url)
        return b"".join([FIRST, varint(size), of_resource, scope_spans, *traces, url])

    return request

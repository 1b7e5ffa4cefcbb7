"""The same traces as the sidecar's, made with the SDK's own tracer: what they are compared with.

`SdkTracing` has the interface of `Tracing`; its spans go to the processors of its provider.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import trace as trace_api
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from orch_sidecar.api.headers import TRACEPARENT, TRACESTATE
from orch_sidecar.api.refusal import Reason
from orch_sidecar.observability.record import Outcome, RequestRecord
from orch_sidecar.observability.request_metrics import PROVIDER
from orch_sidecar.observability.tracing import SpanCounts, Trace, Tracing
from vllm_plugin.contracts.lease_protocol import short_lease

WAIT_SPAN: Final = "admission.wait"
ENGINE_SPAN: Final = "engine.request"

# Caused by the client: these do not set the error status of a span.
_CLIENT_OUTCOMES: Final = frozenset({Outcome.CANCELLED, Outcome.CLIENT_ERROR})

# A client may send any text as the name of a model.
MAX_MODEL_CHARS: Final = 200


def _encodable(text: str) -> str:
    """Replaces lone surrogates, which JSON allows and OTLP does not."""
    return text.encode("utf-8", "replace").decode()


class _EngineSpans(Trace):
    """The spans of admission and engine, one after the other, within a server span."""

    def __init__(
        self, tracing: SdkTracing, record: RequestRecord, server: Span, waiting_since: int
    ) -> None:
        self._tracing = tracing
        self._record = record
        self._context = tracing.api.set_span_in_context(server)
        self._engine: Span | None = None
        self._waiting_since: int | None = waiting_since  # None if it is not queued
        self.server = server

    def dispatched(self) -> str:
        record, tracing = self._record, self._tracing
        self._wait_span(record.admitted)
        start = record.admitted
        self._engine = tracing.tracer.start_span(
            ENGINE_SPAN,
            context=self._context,
            kind=tracing.api.SpanKind.CLIENT,
            start_time=None if start is None else record.at_ns(start),
            attributes=tracing.labels_of(record),
        )
        if record.lease is not None:
            self._engine.set_attribute("orch.lease", short_lease(record.lease))
        carrier: dict[str, str] = {}
        tracing.propagator.inject(carrier, tracing.api.set_span_in_context(self._engine))
        return "".join(f"{name}: {value}\r\n" for name, value in carrier.items())

    def retried(self, reason: Reason) -> None:
        span, self._engine = self._engine, None
        if span is None:
            return  # it is still queued
        self._waiting_since = time.monotonic_ns()
        span.set_attributes({"orch.outcome": reason.value, "error.type": reason.value})
        span.set_status(self._tracing.api.StatusCode.ERROR, reason.value)
        span.end()

    def shared(self, record: RequestRecord) -> Trace:
        raise AssertionError("a shared generation cannot be shared again")

    def joined(self, generation: Trace) -> None:
        raise AssertionError("a shared generation cannot join another")

    def ended(self) -> None:
        self.close(self._tracing.attributes_of(self._record))

    def close(self, attributes: dict[str, Any]) -> None:
        """Ends the spans that have not ended. `attributes`: those of the record."""
        self._wait_span(None, self._record.outcome.value)
        if self._engine is not None:
            self._tracing.end(self._engine, self._record, attributes)

    def _wait_span(self, end: int | None, outcome: str | None = None) -> None:
        record, tracing, since = self._record, self._tracing, self._waiting_since
        if not record.cost or since is None:
            return
        self._waiting_since = None
        span = tracing.tracer.start_span(
            WAIT_SPAN,
            context=self._context,
            start_time=record.at_ns(since),
            attributes={**tracing.labels_of(record), "orch.cost": record.cost},
        )
        if outcome is not None:
            span.set_attribute("orch.outcome", outcome)
        span.end(None if end is None else record.at_ns(end))


class _Spans(Trace):
    """The spans of one request."""

    def __init__(self, tracing: SdkTracing, record: RequestRecord, headers: Mapping[str, str]):
        self._tracing = tracing
        self._record = record
        parent = tracing.propagator.extract(
            {name: headers[name] for name in (TRACEPARENT, TRACESTATE) if name in headers}
        )
        self._server: Span = tracing.tracer.start_span(
            record.endpoint.path,
            context=parent,
            kind=tracing.api.SpanKind.SERVER,
            start_time=record.arrived_ns,
            attributes=tracing.unplaced,
        )
        context = self._server.get_span_context()
        if context.trace_flags.sampled:
            record.trace_id = context.trace_id.to_bytes(16)
        # None: the request shares a generation, whose own trace has these spans.
        self._engine_spans: _EngineSpans | None = _EngineSpans(
            tracing, record, self._server, record.arrived
        )

    def dispatched(self) -> str:
        spans = self._engine_spans
        if spans is None:  # the shared generation failed
            spans = _EngineSpans(self._tracing, self._record, self._server, time.monotonic_ns())
            self._engine_spans = spans
        return spans.dispatched()

    def retried(self, reason: Reason) -> None:
        if self._engine_spans is not None:
            self._engine_spans.retried(reason)

    def shared(self, record: RequestRecord) -> Trace:
        self._engine_spans = None
        return _EngineSpans(self._tracing, record, self._server, record.arrived)

    def joined(self, generation: Trace) -> None:
        assert isinstance(generation, _EngineSpans)
        self._engine_spans = None
        self._server.add_link(generation.server.get_span_context())

    def ended(self) -> None:
        record, tracing = self._record, self._tracing
        attributes = tracing.attributes_of(record)
        if self._engine_spans is not None:
            self._engine_spans.close(attributes)
        for name, value in (
            ("orch.placement", record.placement),
            ("orch.coalesced", record.coalesced or None),
            ("orch.parts", record.parts or None),
            ("orch.run", record.run),
            ("orch.last_token_s", record.seconds_to(record.last_token)),
            (
                "gen_ai.response.time_to_first_chunk",
                record.seconds_to(record.first_byte) if record.stream else None,
            ),
        ):
            if value is not None:
                self._server.set_attribute(name, value)
        tracing.end(self._server, record, attributes)


class SdkTracing(Tracing):
    """Begins traces whose spans are the SDK's."""

    def __init__(self, provider: TracerProvider, unplaced: Mapping[str, Any]) -> None:
        """`unplaced`: attributes of the spans of requests without a pool."""
        self.api = trace_api
        self.spans: SpanCounts | None = None
        self.unplaced: dict[str, Any] = dict(unplaced)
        self.propagator = TraceContextTextMapPropagator()
        self.tracer = provider.get_tracer("orch_sidecar")
        self._provider = provider

    def begin(self, record: RequestRecord, headers: Mapping[str, str]) -> Trace:
        return _Spans(self, record, headers)

    async def shutdown(self) -> None:
        self._provider.shutdown()

    def labels_of(self, record: RequestRecord) -> Mapping[str, Any]:
        """Returns the attributes of its pool and class."""
        return self.unplaced if record.labels is None else record.labels

    def attributes_of(self, record: RequestRecord) -> dict[str, Any]:
        """Returns the attributes of a record that has ended."""
        attributes: dict[str, Any] = {
            **self.labels_of(record),
            "http.request.method": record.method,
            "http.route": record.endpoint.path,
            "orch.outcome": record.outcome.value,
        }
        if record.status:
            attributes["http.response.status_code"] = record.status
        if record.cost:
            attributes |= {
                "gen_ai.operation.name": record.endpoint.operation,
                "gen_ai.provider.name": PROVIDER,
                "gen_ai.request.model": _encodable(record.model[:MAX_MODEL_CHARS]),
                "orch.cost": record.cost,
                "orch.stream": record.stream,
            }
            if record.stream:
                attributes["gen_ai.request.stream"] = True
        for name, value in (
            ("orch.scenario", record.scenario),
            ("orch.request_id", record.request_id),
            ("orch.correlation_id", record.correlation_id),
            ("orch.fanout", record.fanout or None),
            ("gen_ai.request.max_tokens", record.max_tokens),
            ("gen_ai.usage.input_tokens", record.input_tokens),
            ("gen_ai.usage.output_tokens", record.output_tokens),
            ("gen_ai.usage.cache_read.input_tokens", record.cached_tokens),
            ("gen_ai.usage.reasoning.output_tokens", record.reasoning_tokens),
            ("orch.first_byte_s", record.seconds_to(record.first_byte)),
        ):
            if value is not None:
                attributes[name] = value
        return attributes

    def end(self, span: Span, record: RequestRecord, attributes: dict[str, Any]) -> None:
        """Ends a span of a request that has ended."""
        span.set_attributes(attributes)
        outcome = record.outcome
        if outcome is not Outcome.OK:
            span.set_attribute("error.type", outcome.value)
            if outcome not in _CLIENT_OUTCOMES:
                span.set_status(self.api.StatusCode.ERROR, outcome.value)
        span.end()

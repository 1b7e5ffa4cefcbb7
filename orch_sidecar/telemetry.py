"""Traces: one per request, from the client's `traceparent` through admission to the engine.

The only file here that knows OpenTelemetry, and it imports the SDK only when the standard
OTEL_* variables configure an exporter. Spans: `{route}` (server), and under it, one after the
other, `admission.wait` and `engine.request` (client; what vLLM's `llm_request` hangs under).
No prompt text and no keys in any attribute.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from multidict import istr

from orch_sidecar.exchange import Ending, Exchange
from orch_sidecar.openai import Api

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

Headers = list[tuple[bytes, bytes]]

_TRACEPARENT: Final = istr("traceparent")
TRACE_HEADERS: Final = (b"traceparent", b"tracestate")

WAIT_SPAN: Final = "admission.wait"
ENGINE_SPAN: Final = "engine.request"

# A client may write a novel where its model's name belongs.
MAX_MODEL_CHARS: Final = 200

_OPERATIONS: Final = {Api.COMPLETIONS: "text_completion"}  # everything else is a chat


class Trace(Protocol):
    """The spans of one request."""

    def dispatched(self) -> Headers:
        """It was admitted: the trace headers for the engine."""

    def ended(self) -> None:
        """It ended, as its exchange says."""


class Tracing(Protocol):
    """Makes traces. `wants_usage`: whether token counts are worth looking for."""

    wants_usage: bool

    def begin(self, exchange: Exchange, headers: Mapping[str, str]) -> Trace: ...

    def shutdown(self) -> None: ...


class _Passing:
    """No exporter: the client's trace context goes on to the engine as it came."""

    __slots__ = ("_headers",)

    def __init__(self, headers: Headers) -> None:
        self._headers = headers

    def dispatched(self) -> Headers:
        return self._headers

    def ended(self) -> None:
        return


_PASSING_NOTHING: Final = _Passing([])


class NoTracing:
    """Costs a look-up per request."""

    wants_usage = False

    def begin(self, exchange: Exchange, headers: Mapping[str, str]) -> Trace:
        if _TRACEPARENT not in headers:
            return _PASSING_NOTHING
        return _Passing(
            [
                (name, value.encode("utf-8", "surrogateescape"))
                for name in TRACE_HEADERS
                if (value := headers.get(name.decode()))
            ]
        )

    def shutdown(self) -> None:
        return


def _encodable(text: str) -> str:
    """JSON can hold half a surrogate pair; OTLP cannot."""
    return text.encode("utf-8", "replace").decode()


class _Spans:
    """The spans of one request in an SDK."""

    def __init__(self, tracing: SpanTracing, exchange: Exchange, headers: Mapping[str, str]):
        self._tracing = tracing
        self._exchange = exchange
        api = tracing.api
        parent = tracing.propagator.extract(
            {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        )
        self._server: Span = tracing.tracer.start_span(
            exchange.route,
            context=parent,
            kind=api.SpanKind.SERVER,
            start_time=exchange.arrived_ns,
            attributes=tracing.common,
        )
        self._context = api.set_span_in_context(self._server)
        self._engine: Span | None = None
        self._waited = False

    def _wait_span(self, end: int | None) -> None:
        exchange, tracing = self._exchange, self._tracing
        if not exchange.cost or self._waited:
            return
        self._waited = True
        span = tracing.tracer.start_span(
            WAIT_SPAN,
            context=self._context,
            start_time=exchange.arrived_ns,
            attributes=tracing.common | {"orch.cost": exchange.cost},
        )
        if exchange.admitted is None:
            span.set_attribute("orch.outcome", exchange.outcome.value)
        span.end(None if end is None else exchange.at_ns(end))

    def dispatched(self) -> Headers:
        exchange, tracing = self._exchange, self._tracing
        self._wait_span(exchange.admitted)
        start = exchange.admitted
        self._engine = tracing.tracer.start_span(
            ENGINE_SPAN,
            context=self._context,
            kind=tracing.api.SpanKind.CLIENT,
            start_time=None if start is None else exchange.at_ns(start),
            attributes=tracing.common,
        )
        if exchange.lease is not None:
            # The part that names it, not the part that makes it unguessable.
            self._engine.set_attribute("orch.lease", exchange.lease[:24])
        carrier: dict[str, str] = {}
        tracing.propagator.inject(carrier, tracing.api.set_span_in_context(self._engine))
        return [(name.encode(), value.encode("latin-1")) for name, value in carrier.items()]

    def ended(self) -> None:
        exchange, api = self._exchange, self._tracing.api
        self._wait_span(None)
        attributes: dict[str, Any] = {
            "http.request.method": exchange.method,
            "http.route": exchange.route,
            "orch.outcome": exchange.outcome.value,
            "orch.request_id": exchange.request_id,
            "orch.correlation_id": exchange.correlation_id,
        }
        if exchange.status:
            attributes["http.response.status_code"] = exchange.status
        if exchange.cost:
            attributes |= {
                "gen_ai.operation.name": _OPERATIONS.get(exchange.api, "chat"),
                "gen_ai.provider.name": "vllm",
                "gen_ai.request.model": _encodable(exchange.model[:MAX_MODEL_CHARS]),
                "orch.cost": exchange.cost,
                "orch.stream": exchange.stream,
            }
        for name, value in (
            ("gen_ai.request.max_tokens", exchange.max_tokens),
            ("gen_ai.usage.input_tokens", exchange.input_tokens),
            ("gen_ai.usage.output_tokens", exchange.output_tokens),
        ):
            if value is not None:
                attributes[name] = value
        if exchange.first_byte is not None:
            attributes["orch.first_byte_s"] = (exchange.first_byte - exchange.arrived) / 1e9
        failed = exchange.status >= 500 or not isinstance(exchange.outcome, Ending)
        for span in (self._engine, self._server):
            if span is None:
                continue
            span.set_attributes(attributes)
            if failed or exchange.outcome is Ending.CANCELLED:
                span.set_attribute("error.type", exchange.outcome.value)
            if failed:
                span.set_status(api.StatusCode.ERROR, exchange.outcome.value)
            span.end()


class SpanTracing:
    """Traces exported by OTLP, from a background thread: a slow collector slows no request."""

    wants_usage = True

    def __init__(self, provider: TracerProvider, common: Mapping[str, Any]) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.api = trace
        self.common: dict[str, Any] = dict(common)
        self.propagator = TraceContextTextMapPropagator()
        self.tracer = provider.get_tracer("orch_sidecar")
        self._provider = provider

    def begin(self, exchange: Exchange, headers: Mapping[str, str]) -> Trace:
        return _Spans(self, exchange, headers)

    def shutdown(self) -> None:
        self._provider.shutdown()


def otlp_protocol(environ: Mapping[str, str]) -> str | None:
    """`grpc` or `http/protobuf` if the OTEL_* variables configure an exporter, else None.

    Without a configured protocol the port decides: 4317 is registered for gRPC.
    """
    endpoint = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get(
        "OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    disabled = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if not endpoint or disabled or environ.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    configured = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    if configured:
        return configured
    # A gRPC target may come without a scheme; an HTTP endpoint may not.
    return (
        "grpc"
        if endpoint.rstrip("/").endswith(":4317") or "://" not in endpoint
        else "http/protobuf"
    )


def tracing_from_environment(common: Mapping[str, Any]) -> Tracing:
    """What the OTEL_* variables configure. `common`: attributes of every span and the resource.

    Raises ValueError for a protocol that is not supported.
    """
    protocol = otlp_protocol(os.environ)
    if protocol is None:
        return NoTracing()
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

    exporter: SpanExporter
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
            OTLPSpanExporter as GrpcExporter,
        )

        exporter = GrpcExporter()
    elif protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
            OTLPSpanExporter as HttpExporter,
        )

        exporter = HttpExporter()
    else:
        raise ValueError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}, must be 'grpc' or 'http/protobuf'"
        )
    name = os.environ.get("OTEL_SERVICE_NAME", "orch-sidecar")
    resource = Resource.create({"service.name": name, **common})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return SpanTracing(provider, common)

"""A small OTLP/HTTP receiver, to show a trace without a collector."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A received span. Ids are hexadecimal, times are nanoseconds."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    resource: dict[str, Any]

    @property
    def service(self) -> str:
        return str(self.resource.get("service.name", ""))


def _value(value: AnyValue) -> Any:
    which = value.WhichOneof("value")
    return None if which is None else getattr(value, which)


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def decode(request: ExportTraceServiceRequest) -> list[ReceivedSpan]:
    """Returns the spans of one export request."""
    return [
        ReceivedSpan(
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            name=span.name,
            start_ns=span.start_time_unix_nano,
            end_ns=span.end_time_unix_nano,
            attributes=_attributes(span.attributes),
            resource=_attributes(resource_spans.resource.attributes),
        )
        for resource_spans in request.resource_spans
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
    ]


class OtlpReceiver:
    """Stores the spans exported to it. Use as a context manager."""

    def __init__(self) -> None:
        self._spans: list[ReceivedSpan] = []
        self._lock: Final = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        """The value for OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Stores the spans of one export request; called from a thread per connection."""
        spans = decode(request)
        with self._lock:
            self._spans.extend(spans)

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All spans received so far."""
        with self._lock:
            return list(self._spans)

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        """Returns the spans of a trace received so far, by start."""
        with self._lock:
            found = [span for span in self._spans if span.trace_id == trace_id]
        return sorted(found, key=lambda span: span.start_ns)

    def wait(
        self, trace_id: str, complete: Callable[[list[ReceivedSpan]], bool], within_s: float
    ) -> list[ReceivedSpan]:
        """Returns the spans of a trace once they are complete, or after a timeout."""
        until = time.monotonic() + within_s
        while True:
            spans = self.trace(trace_id)
            if complete(spans) or time.monotonic() > until:
                return spans
            time.sleep(0.05)


def tree(spans: list[ReceivedSpan], shown: Iterable[str]) -> str:
    """Formats a trace as an indented tree with durations and the attributes named in `shown`."""
    names = tuple(shown)
    known = {span.span_id for span in spans}
    lines: list[str] = []

    def add(span: ReceivedSpan, depth: int) -> None:
        attributes = "  ".join(
            f"{name}={span.attributes[name]}" for name in names if name in span.attributes
        )
        milliseconds = (span.end_ns - span.start_ns) / 1e6
        lines.append(
            f"{'  ' * depth}{span.name}  [{span.service}]  {milliseconds:.1f} ms  {attributes}"
        )
        for child in spans:
            if child.parent_id == span.span_id:
                add(child, depth + 1)

    for span in spans:
        if span.parent_id not in known:
            add(span, 0)
    return "\n".join(lines)

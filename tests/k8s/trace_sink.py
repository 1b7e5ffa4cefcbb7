"""Stands in Jaeger's place in a cluster without its image: takes OTLP/gRPC, and prints it.

A program of its own: a pod runs a copy of this file, where nothing of this project is. Each export
is a line of base64 on its standard output.
"""

from __future__ import annotations

import base64
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

OTLP_PORT: Final = 4317
UI_PORT: Final = 16686
HEALTH_PORT: Final = 13133


class Service(TraceServiceServicer):
    """Prints what comes."""

    def Export(  # noqa: N802 (the service's own name)
        self, request: ExportTraceServiceRequest, context: Any
    ) -> ExportTraceServiceResponse:
        print(base64.b64encode(request.SerializeToString()).decode(), flush=True)
        return ExportTraceServiceResponse()


class Well(BaseHTTPRequestHandler):
    """Answers probes."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return


def main() -> None:
    """Serves until killed."""
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(Service(), server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"0.0.0.0:{OTLP_PORT}")
    server.start()
    for port in (UI_PORT, HEALTH_PORT):
        pages = ThreadingHTTPServer(("0.0.0.0", port), Well)
        threading.Thread(target=pages.serve_forever, daemon=True).start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()

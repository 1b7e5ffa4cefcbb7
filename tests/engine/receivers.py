"""Collectors that keep what is exported to them as it came, over HTTP and over gRPC."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from orch_sidecar.tools.local.check import OtlpReceiver


class HttpReceiver(OtlpReceiver):
    """Keeps what is exported to it over HTTP."""

    def __init__(self) -> None:
        super().__init__()
        self.exports: list[ExportTraceServiceRequest] = []

    def take(self, request: ExportTraceServiceRequest) -> None:
        self.exports.append(request)
        super().take(request)


class GrpcReceiver(HttpReceiver):
    """Keeps what is exported to it over gRPC."""

    def __init__(self) -> None:
        super().__init__()
        receiver = self

        class Service(TraceServiceServicer):
            def Export(  # noqa: N802 (the service's own name)
                self, request: ExportTraceServiceRequest, context: Any
            ) -> ExportTraceServiceResponse:
                receiver.take(request)
                return ExportTraceServiceResponse()

        self._grpc = grpc.server(ThreadPoolExecutor(2))
        add_TraceServiceServicer_to_server(Service(), self._grpc)  # type: ignore[no-untyped-call]
        self._port = self._grpc.add_insecure_port("127.0.0.1:0")

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> GrpcReceiver:
        super().__enter__()
        self._grpc.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._grpc.stop(None).wait()
        super().__exit__(*exc)

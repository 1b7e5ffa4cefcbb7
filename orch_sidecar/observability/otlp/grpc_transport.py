"""Sends requests as OTLP over gRPC: unary calls with bytes that are encoded already.

gRPC's own threads do the work of its connections; a call ends on the event loop.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from orch_sidecar.observability.otlp.delivery import Reply, Verdict, accepted, readable
from orch_sidecar.observability.otlp.settings import Compression, ExportSettings

METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
USER_AGENT: Final = f"orch-sidecar-OTLP-Exporter-Python/{version('orch-sidecar')}"

# RESOURCE_EXHAUSTED is another one, if the collector states when it will have recovered.
RETRYABLE_CODES: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)

# Where a server puts RetryInfo: in the standard field, within a Status, or by itself.
_STATUS: Final = "grpc-status-details-bin"
_RETRY_INFO: Final = "google.rpc.retryinfo-bin"

_OPTIONS: Final = (
    ("grpc.primary_user_agent", USER_AGENT),
    # Otherwise gRPC waits up to two minutes before it connects again to a collector that is back.
    ("grpc.max_reconnect_backoff_ms", 5000),
)


class GrpcTransport:
    """Calls one collector, over one channel."""

    def __init__(self, settings: ExportSettings) -> None:
        """Raises ValueError if the certificates cannot be used."""
        self.address = settings.endpoint
        self._metadata = tuple(
            (name, value.encode() if name.endswith("-bin") else value)
            for name, value in settings.headers
        )
        gzip = settings.compression is Compression.GZIP
        self._compression = grpc.Compression.Gzip if gzip else grpc.Compression.NoCompression
        self._credentials = None if settings.insecure else _credentials(settings)
        self._channel: Any = None
        self._export: Any = None

    async def prepare(self, request: bytes) -> bytes:
        return request  # gRPC compresses

    async def send(self, prepared: bytes, timeout_s: float | None) -> Reply:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def wake(call: Any) -> None:  # in a thread of gRPC's
            if not loop.is_closed():
                loop.call_soon_threadsafe(_set, ended)

        # In a thread: gRPC compresses and writes to the socket before it returns.
        call = await loop.run_in_executor(None, self._call, prepared, timeout_s)
        call.add_done_callback(wake)
        try:
            await ended
        except asyncio.CancelledError:
            call.cancel()
            raise
        return _reply(call)

    async def close(self) -> None:
        if self._channel is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._channel.close)

    def _call(self, prepared: bytes, timeout_s: float | None) -> Any:
        if self._channel is None:
            self._channel = (
                grpc.insecure_channel(self.address, _OPTIONS)
                if self._credentials is None
                else grpc.secure_channel(self.address, self._credentials, _OPTIONS)
            )
            self._export = self._channel.unary_unary(METHOD)
        return self._export.future(
            prepared,
            timeout=timeout_s,
            metadata=self._metadata,
            compression=self._compression,
        )


def _set(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


def _credentials(settings: ExportSettings) -> Any:
    settings.tls()  # raises with a text that names the variable: gRPC would fail at each call

    def read(path: Any) -> bytes | None:
        return None if path is None else path.read_bytes()

    certificate = read(settings.client_certificate)
    # As OpenSSL does it: without a file of its own the key is in that of the certificate.
    key = read(settings.client_key) or certificate
    return grpc.ssl_channel_credentials(
        read(settings.certificate), key if certificate else None, certificate
    )


def _reply(call: Any) -> Reply:
    """Returns what came of a call that has ended."""
    code = call.code()
    if code is grpc.StatusCode.OK:
        return accepted(call.result())
    text = readable(f"{code.name}: {call.details()}")
    metadata: dict[str, Any] = dict(call.trailing_metadata() or ())
    retry_after_s = _retry_delay_s(metadata)
    retryable = code in RETRYABLE_CODES or (
        code is grpc.StatusCode.RESOURCE_EXHAUSTED and retry_after_s is not None
    )
    if not retryable:
        return Reply(Verdict.REJECTED, text)
    return Reply(Verdict.RETRY, text, retry_after_s=retry_after_s)


def _retry_delay_s(metadata: dict[str, Any]) -> float | None:
    """Returns the delay in a server's RetryInfo; None if there is none."""
    found = RetryInfo()
    try:
        if _RETRY_INFO in metadata:
            found = RetryInfo.FromString(metadata[_RETRY_INFO])
        elif not any(
            each.Unpack(found) for each in Status.FromString(metadata.get(_STATUS, b"")).details
        ):
            return None
    except DecodeError:
        return None
    return max(0.0, float(found.retry_delay.seconds + found.retry_delay.nanos / 1e9))

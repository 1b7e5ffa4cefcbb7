"""A transport to a collector on this machine."""

from __future__ import annotations

from orch_sidecar.observability.otlp.delivery import Reply
from orch_sidecar.observability.otlp.http_transport import HttpTransport
from orch_sidecar.observability.otlp.settings import ExportSettings
from tests.orch_sidecar.observability.otlp.http_receivers import Behaviour, http_receiver

LONG_S = 60.0  # for what must not end by time


def transport_to(port: int, **environ: str) -> HttpTransport:
    variables = {"ENDPOINT": f"http://127.0.0.1:{port}"} | environ
    return HttpTransport(
        ExportSettings.from_environ({f"OTEL_EXPORTER_OTLP_{k}": v for k, v in variables.items()})
    )


async def one(
    behaviour: Behaviour, body: bytes = b"spans", limit_s: float | None = LONG_S
) -> Reply:
    """Sends one request to a collector that does this."""
    async with http_receiver(behaviour) as receiver:
        transport = transport_to(receiver.port)
        try:
            return await transport.send(body, limit_s)
        finally:
            await transport.close()

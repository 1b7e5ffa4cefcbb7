"""Builds the tracing that the OTEL_* variables configure.

OpenTelemetry's SDK, which is imported only if they configure an exporter, reads from them the
resource, the sampler and the limits of spans; `settings` reads the rest.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any, Final

from orch_sidecar.observability.otlp.settings import ExportSettings, otlp_protocol
from orch_sidecar.observability.tracing import Tracing

logger = logging.getLogger("orch.sidecar")

# Of the spans: their instrumentation scope.
SCOPE: Final = "orch_sidecar"


def tracing_from_environment(common: Mapping[str, Any], unplaced: Mapping[str, Any]) -> Tracing:
    """Builds the tracing that the OTEL_* variables configure.

    `common`: attributes of the resource, the same for all pools. `unplaced`: attributes of the
    spans of requests without a pool.

    Raises ValueError for variables that cannot be used, such as a protocol that is not supported.
    """
    if otlp_protocol(os.environ) is None:
        return Tracing()
    settings = ExportSettings.from_environ(os.environ)
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider

    from orch_sidecar.observability.otlp.attributes import Limits
    from orch_sidecar.observability.otlp.delivery import SpanBatcher, Transport
    from orch_sidecar.observability.otlp.encoder import SpanEncoder, request_encoder
    from orch_sidecar.observability.otlp.spans import SpanTracing

    transport: Transport
    if settings.protocol == "grpc":
        from orch_sidecar.observability.otlp.grpc_transport import GrpcTransport

        transport = GrpcTransport(settings)
    else:
        from orch_sidecar.observability.otlp.http_transport import HttpTransport

        transport = HttpTransport(settings)
    # OTEL_SERVICE_NAME, or else what OTEL_RESOURCE_ATTRIBUTES has.
    name = OTELResourceDetector().detect().attributes.get("service.name") or "orch-sidecar"
    resource = Resource.create({"service.name": name, **common})
    # Makes no span: it has the sampler and the generator of ids.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    limits = SpanLimits()
    encoder = SpanEncoder(
        unplaced,
        Limits(limits.max_span_attributes, limits.max_span_attribute_length, limits.max_links),
    )
    request = request_encoder(_encodable(resource.attributes), resource.schema_url, SCOPE)
    batcher = SpanBatcher(settings, transport, request)
    return SpanTracing(encoder, batcher, batcher.counts, provider.sampler, provider.id_generator)


def _encodable(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out what cannot be encoded, as the SDK does."""
    from orch_sidecar.observability.otlp.protobuf import FIRST, attribute

    encodable = {}
    for name, value in resource.items():
        try:
            attribute(FIRST, name, value)
        except (ValueError, OverflowError, TypeError) as error:
            logger.warning("the attribute %r of the resource is left out: %s", name, error)
        else:
            encodable[name] = value
    return encodable

"""Where an engine's traces go, how they are labelled, and what it does not log.

Pure. vLLM's own option for traces is set from OpenTelemetry's standard environment variables.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import Final

from vllm_plugin.contracts.profile import Profile

_TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
TRACES_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
_RESOURCE_ATTRIBUTES: Final = "OTEL_RESOURCE_ATTRIBUTES"


def traces_endpoint(environ: Mapping[str, str]) -> str | None:
    """Returns the traces endpoint of the standard OTEL_* variables in vLLM's form, or None."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if environ.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        return None
    own = environ.get(_TRACES_ENDPOINT)
    if own:
        return own
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not base:
        return None
    if traces_protocol(environ, base) == "grpc":
        return base
    return base.rstrip("/") + "/v1/traces"


def traces_protocol(environ: Mapping[str, str], endpoint: str) -> str:
    """Returns the OTLP protocol: as configured, else according to the port's registration."""
    configured = environ.get(TRACES_PROTOCOL) or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if configured:
        return configured
    # A gRPC target may have no scheme; an HTTP endpoint must have one.
    return (
        "grpc"
        if endpoint.rstrip("/").endswith(":4317") or "://" not in endpoint
        else "http/protobuf"
    )


def label_resource(profile: Profile, environ: MutableMapping[str, str]) -> None:
    """Adds the profile to the OpenTelemetry resource of this process and its children."""
    environ.setdefault("OTEL_SERVICE_NAME", "vllm")
    ours = {"measurement_type": profile.measurement_type.value, "orch.profile": profile.name}
    kept = [
        pair
        for pair in environ.get(_RESOURCE_ATTRIBUTES, "").split(",")
        if pair and pair.partition("=")[0].strip() not in ours
    ]
    environ[_RESOURCE_ATTRIBUTES] = ",".join(kept + [f"{k}={v}" for k, v in ours.items()])


class IterationLineFilter(logging.Filter):
    """Drops the line that vLLM logs for each step when iteration details are enabled."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "Iteration(%d)" not in str(record.msg)

"""Renders metrics in the format that the scraper accepts.

OpenMetrics, which has exemplars, if it is accepted (Prometheus does), else the classic text format.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_openmetrics: Final[Callable[[CollectorRegistry], bytes]] = openmetrics.generate_latest  # untyped


def render(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Returns all metrics and their content type. `accept`: the Accept header, "" if absent."""
    if prefers_openmetrics(accept):
        return _openmetrics(registry), OPENMETRICS
    return generate_latest(registry), TEXT


def prefers_openmetrics(accept: str) -> bool:
    """Returns whether OpenMetrics 1 is accepted by name, with at least the weight of classic text.

    Invalid media ranges are ignored: metrics in any format are better than an error.
    """
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for each in accept.lower().split(","):
        name, *parameters = (part.strip() for part in each.split(";"))
        if name not in weights:
            continue
        values = dict(parameter.partition("=")[::2] for parameter in parameters)
        version = values.get("version", "").strip('"')
        if name != "text/plain" and version.partition(".")[0] not in ("", "1"):
            continue
        try:
            weights[name] = max(weights[name], float(values.get("q", "1")))
        except ValueError:
            continue
    # 0 means not acceptable; the smallest other weight is 0.001 (RFC 9110, 12.4.2).
    return weights["application/openmetrics-text"] >= max(weights["text/plain"], 0.001)

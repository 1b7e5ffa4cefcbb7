"""Metrics in the format that whoever scrapes them asks for.

OpenMetrics, which has exemplars, for who asks for it (Prometheus does); else the classic text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_openmetrics: Final[Callable[[CollectorRegistry], bytes]] = openmetrics.generate_latest  # untyped


def exposed(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """All metrics, and their content type. `accept`: the header, empty if there is none."""
    if prefers_openmetrics(accept):
        return _openmetrics(registry), OPENMETRICS
    return generate_latest(registry), TEXT


def prefers_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics 1 is asked for by its name, and no less than the classic text is.

    A range that cannot be read counts as not there: some metrics are better than an error.
    """
    asked = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for each in accept.lower().split(","):
        name, *parameters = (part.strip() for part in each.split(";"))
        if name not in asked:
            continue
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        version = given.get("version", "").strip('"')
        if name != "text/plain" and version.partition(".")[0] not in ("", "1"):
            continue
        try:
            asked[name] = max(asked[name], float(given.get("q", "1")))
        except ValueError:
            continue
    # 0 is: not at all. No weight above that is smaller than 0.001 (RFC 9110, 12.4.2).
    return asked["application/openmetrics-text"] >= max(asked["text/plain"], 0.001)

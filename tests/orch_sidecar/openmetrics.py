"""A strict reader of OpenMetrics: the library's own, which raises ValueError at what is not."""

from __future__ import annotations

from typing import Any

from prometheus_client import Metric
from prometheus_client.openmetrics import parser

_families: Any = parser.text_string_to_metric_families  # untyped


def openmetrics(body: bytes) -> list[Metric]:
    """All families."""
    return list(_families(body.decode()))

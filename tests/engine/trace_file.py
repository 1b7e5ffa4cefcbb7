"""Exports of traces as a file, as the OpenTelemetry collector's file exporter writes them.

One line of OTLP/JSON per export: ids in hexadecimal, everything else as protobuf's JSON has it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_IDS = ("traceId", "spanId", "parentSpanId")


def write(path: Path, exports: Iterable[ExportTraceServiceRequest]) -> None:
    """Writes exports in the order in which they came."""
    lines = (json.dumps(_with_hexadecimal_ids(MessageToDict(each))) for each in exports)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _with_hexadecimal_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_hexadecimal_ids(each) for each in value]
    if isinstance(value, dict):
        return {
            name: base64.b64decode(each).hex() if name in _IDS else _with_hexadecimal_ids(each)
            for name, each in value.items()
        }
    return value

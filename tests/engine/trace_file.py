"""A collector that writes what it gets into a file, as the OpenTelemetry collector's exporter does.

One line of OTLP/JSON per export: ids in hexadecimal, everything else as protobuf's JSON has it.
"""

from __future__ import annotations

import base64
import json
import threading
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from orch_sidecar.tools.local.otlp import OtlpReceiver

_IDS = ("traceId", "spanId", "parentSpanId")


class TraceFile(OtlpReceiver):
    """Keeps what is exported to it, in memory and in a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._file_lock = threading.Lock()

    def take(self, request: ExportTraceServiceRequest) -> None:
        line = json.dumps(_with_hexadecimal_ids(MessageToDict(request)))
        with self._file_lock, self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        super().take(request)


def _with_hexadecimal_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_hexadecimal_ids(each) for each in value]
    if isinstance(value, dict):
        return {
            name: base64.b64decode(each).hex() if name in _IDS else _with_hexadecimal_ids(each)
            for name, each in value.items()
        }
    return value

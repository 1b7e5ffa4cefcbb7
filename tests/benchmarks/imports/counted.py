"""Reads the engine's own counters of a window, and those in its spans."""

from __future__ import annotations

import re
import statistics
import time
import urllib.request
from dataclasses import dataclass
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from orch_sidecar.tools.facts.labels.observation import States
from orch_sidecar.tools.local.check import REQUEST_SPAN, OtlpReceiver, ReceivedSpan, decode

_SPANS_WITHIN_S: Final = 20.0
_GENERATED: Final = re.compile(r"^vllm:generation_tokens_total\{[^}]*\} (\S+)$", re.MULTILINE)
_TTFT: Final = "gen_ai.latency.time_to_first_token"


@dataclass(frozen=True, slots=True)
class Counted:
    """Tokens by vLLM's own counter (`generated`), sequences over all decode-only steps
    (`decoded`: a token each), requests that came in; and of the spans their number, tokens, and
    the engine's time to the first token."""

    generated: int
    decoded: int
    requests: int
    spans: int
    span_tokens: int
    span_ttft_p50_ms: float


class Spans(OtlpReceiver):
    """Keeps the engine's spans in the order in which they came."""

    def __init__(self) -> None:
        super().__init__()
        self.decodes: list[ReceivedSpan] = []

    def take(self, request: ExportTraceServiceRequest) -> None:
        super().take(request)
        self.decodes += [span for span in decode(request) if span.name == REQUEST_SPAN]

    def since(self, seen: int, expected: int) -> list[ReceivedSpan]:
        """Those after the first `seen`, once there are as many as expected or time is over."""
        until = time.monotonic() + _SPANS_WITHIN_S
        while len(self.decodes) - seen < expected and time.monotonic() < until:
            time.sleep(0.1)
        return self.decodes[seen:]


def generated_tokens(engine_url: str) -> int:
    """What the engine has generated since it started."""
    with urllib.request.urlopen(f"{engine_url}/metrics", timeout=30) as response:
        return round(sum(map(float, _GENERATED.findall(response.read().decode()))))


def counted(ends: States, generated: int, spans: list[ReceivedSpan]) -> Counted:
    batches = ends.batches
    return Counted(
        generated=generated,
        decoded=round(batches.steps * batches.mean),
        requests=ends.after.requests_total - ends.before.requests_total,
        spans=len(spans),
        span_tokens=sum(span.attributes["gen_ai.usage.output_tokens"] for span in spans),
        span_ttft_p50_ms=1000 * statistics.median(span.attributes[_TTFT] for span in spans),
    )

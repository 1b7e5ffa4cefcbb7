"""Spans for tests: recorded ones, and constructed ones with the attributes that tests need.

The files in `traces/` are what a real sidecar and vLLM (CPU build) exported, in the form of the
OpenTelemetry collector's file exporter, one export a line:

home     single_stream; a warm-up, three streams one after the other, two requests at once
cloud    batched_online; six streams at once
mixed    batched_online; three that were coalesced, one with n=2, one whose client disconnected,
         one that was rejected, two of class bulk
offline  offline; six requests at once
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from orch_sidecar.tools.facts.traces.otlp_file import read
from orch_sidecar.tools.facts.traces.requests import Traffic, build_traffic
from orch_sidecar.tools.facts.traces.span import Kind, Link, Span, Value

TRACES = Path(__file__).with_name("traces")

SIDECAR: Mapping[str, Value] = {"service.name": "orch-sidecar"}
ENGINE: Mapping[str, Value] = {"service.name": "vllm"}


def real(name: str) -> list[Span]:
    """Returns all spans of a file."""
    path = TRACES / f"{name}.jsonl"
    return read(path.name, path.read_bytes())


def without(spans: Iterable[Span], *names: str) -> list[Span]:
    """Returns the spans without some attributes."""
    return [
        replace(span, attributes={k: v for k, v in span.attributes.items() if k not in names})
        for span in spans
    ]


def one(
    number: int,
    start_s: float,
    end_s: float,
    *,
    label: str = "batched_online",
    outcome: str = "ok",
    sequences: int = 2,
    tokens: tuple[int, int] = (10, 5),
    batch: tuple[int, int, float] | None = (4, 2, 1.5),
    decoded: int | None = None,
    server: Mapping[str, Value] | None = None,
    decode: Mapping[str, Value] | None = None,
    links: tuple[Link, ...] = (),
    stream: bool = True,
) -> list[Span]:
    """Returns the spans of one request (n=2) that is in the engine from start to end.

    `tokens`: of the prompt, and of each sequence. `batch`: steps, largest and mean batch.
    `decoded`: how many sequences have a span of the engine (all, if the request was served).
    `server`, `decode`: further attributes of the spans of sidecar and engine.
    """
    trace_id, start_ns, end_ns = f"{number:032x}", round(start_s * 1e9), round(end_s * 1e9)
    if decoded is None:
        decoded = sequences if outcome == "ok" else 0

    def span(
        place: int, parent: int | None, name: str, kind: Kind, attributes: Mapping[str, Value]
    ) -> Span:
        return Span(
            trace_id=trace_id,
            span_id=f"{place:016x}",
            parent_id=None if parent is None else f"{parent:016x}",
            name=name,
            kind=kind,
            start_ns=start_ns,
            end_ns=end_ns,
            attributes={"measurement_type": label, "orch.pool": "pool", **attributes},
            resource=ENGINE if name == "llm_request" else SIDECAR,
            links=links if kind is Kind.SERVER and name != "llm_request" else (),
        )

    of_sidecar: dict[str, Value] = {
        "orch.outcome": outcome,
        "orch.request_id": f"r{number}",
        "orch.profile": "profile",
        "orch.class": "interactive",
        "orch.cost": sequences,
        "gen_ai.request.model": "model",
    }
    streamed: dict[str, Value] = {"orch.stream": True, "orch.first_byte_s": (end_s - start_s) / 2}
    of_server = {**of_sidecar, **(streamed if stream else {"orch.stream": False}), **(server or {})}
    of_engine: dict[str, Value] = {
        "gen_ai.request.id": f"cmpl-{number}",
        "gen_ai.usage.input_tokens": tokens[0],
        "gen_ai.usage.output_tokens": tokens[1],
        "orch.epoch": "e1",
        "orch.engine_version": "0.32.0",
        "orch.precision": "BF16",
        "orch.gpu": "H100",
        "orch.gpu_count": 1,
    }
    if batch is not None:
        steps, largest, mean = batch
        of_engine |= {
            "orch.steps": steps,
            "orch.batch_size.max": largest,
            "orch.batch_size.mean": mean,
        }
    return [
        span(1, None, "/v1/completions", Kind.SERVER, of_server),
        span(2, 1, "admission.wait", Kind.INTERNAL, {}),
        span(3, 1, "engine.request", Kind.CLIENT, of_sidecar),
        *(
            span(4 + index, 3, "llm_request", Kind.SERVER, {**of_engine, **(decode or {})})
            for index in range(decoded)
        ),
    ]


def traffic_from(*requests: list[Span]) -> Traffic:
    """Builds the traffic in the spans of these requests."""
    return build_traffic(span for request in requests for span in request)

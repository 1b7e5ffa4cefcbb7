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

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from orch_sidecar.tools.facts.traces.requests import Traffic, build_traffic
from orch_sidecar.tools.facts.traces.spans import Link, Span, Value, read_file

TRACES = Path(__file__).with_name("traces")

SIDECAR_PROFILE = "profile"

RECORDED = ("home", "cloud", "mixed", "offline")

CONDITIONS: Mapping[str, Value] = {
    "orch.speculative": "none",
    "orch.quantization": "none",
    "orch.kv_cache_dtype": "bfloat16",
    "orch.prefix_caching": "on",
    "orch.attention_backend": "FLASH_ATTN",
    "orch.tensor_parallel": 1,
    "orch.pipeline_parallel": 1,
    "orch.tokens_per_step": 1,
}


# Attributes that `counted` adds.
COUNTERS = (
    "orch.request_number",
    "orch.requests_total",
    "orch.decode_steps_total",
    "orch.decode_sequences_total",
    "orch.engine_steps",
    "orch.prefix_cache.queries_before",
    "orch.prefix_cache.hits_before",
    "orch.prefix_cache.queries_total",
    "orch.prefix_cache.hits_total",
)


def real(name: str) -> list[Span]:
    """Returns all spans of a file."""
    return _recorded()[name]


@cache
def _recorded() -> dict[str, list[Span]]:
    files = {
        name: read_file(f"{name}.jsonl", (TRACES / f"{name}.jsonl").read_bytes())
        for name in RECORDED
    }
    # Two files are of one engine, whose counters go on.
    every = iter(counted(span for spans in files.values() for span in spans))
    return {name: [next(every) for _ in spans] for name, spans in files.items()}


def service_of(span: Span) -> str:
    """Returns the name of the service that exports such a span."""
    return "vllm" if span.name == "llm_request" else "orch-sidecar"


def without(spans: Iterable[Span], *names: str) -> list[Span]:
    """Returns the spans without some attributes."""
    return [
        replace(span, attributes={k: v for k, v in span.attributes.items() if k not in names})
        for span in spans
    ]


def counted(spans: Iterable[Span]) -> list[Span]:
    """Returns the spans with the counters and conditions of an engine that served just these.

    What a span has already stays. Requests enter an engine by the start of their attempts.
    """
    found = list(spans)
    attempts = {(span.trace_id, span.span_id): span for span in found if _is_attempt(span)}
    sequences = [span for span in found if span.name == "llm_request"]
    entered: dict[Value | None, dict[tuple[str, str], int]] = defaultdict(dict)
    for span in sequences:
        key = span.trace_id, span.parent_id or span.span_id
        start_ns = attempts[key].start_ns if key in attempts else span.start_ns
        entered[span.attributes.get("orch.epoch")].setdefault(key, start_ns)
    aborted = [
        span for key, span in attempts.items() if not any(key in e for e in entered.values())
    ]
    for span in aborted:
        engines = {
            each.attributes.get("orch.epoch")
            for each in sequences
            if each.attributes.get("orch.pool") == span.attributes.get("orch.pool")
        }
        for engine in engines:
            entered[engine][span.trace_id, span.span_id] = span.start_ns
    added: dict[tuple[str, str], dict[str, Value]] = {}
    for engine, starts in entered.items():
        own = [span for span in sequences if span.attributes.get("orch.epoch") == engine]
        added |= _counters(own, starts)
    return [
        replace(span, attributes={**added[_key(span)], **span.attributes})
        if _key(span) in added
        else span
        for span in found
    ]


def _is_attempt(span: Span) -> bool:
    return span.name == "engine.request"


def _key(span: Span) -> tuple[str, str]:
    return span.trace_id, span.span_id


def _number(span: Span, name: str) -> Any:
    """A number that is stored as one, 0 where it is missing."""
    value = span.attributes.get(name)
    return value if isinstance(value, int | float) else 0


def _counters(
    sequences: list[Span], starts: Mapping[tuple[str, str], int]
) -> dict[tuple[str, str], dict[str, Value]]:
    """Returns the counters at the ends of all sequences of an engine. `starts`: its requests'."""
    order = sorted(starts, key=lambda key: (starts[key], key))
    found: dict[tuple[str, str], dict[str, Value]] = {}
    ended: list[tuple[int, int, int]] = []  # end, steps and their sequences until then
    tokens = 0
    for span in sorted(sequences, key=lambda span: (span.end_ns, span.start_ns)):
        at = span.attributes
        steps = _number(span, "orch.steps")
        beside = round(steps * _number(span, "orch.batch_size.mean"))
        before = max((each[1:] for each in ended if each[0] <= span.start_ns), default=(0, 0))
        latest = max((each[1:] for each in ended), default=(0, 0))
        total = max(latest[0], before[0] + steps), max(latest[1], before[1] + beside)
        ended.append((span.end_ns, *total))
        prompt = _number(span, "gen_ai.usage.input_tokens")
        found[_key(span)] = {
            "orch.profile": SIDECAR_PROFILE,
            "orch.slots_total": 1 if at["measurement_type"] == "single_stream" else 8,
            "orch.request_number": 1 + order.index((span.trace_id, span.parent_id or span.span_id)),
            "orch.requests_total": sum(start_ns <= span.end_ns for start_ns in starts.values()),
            "orch.decode_steps_total": total[0],
            "orch.decode_sequences_total": total[1],
            "orch.engine_steps": steps + 1,
            "orch.prefix_cache.queries_before": tokens,
            "orch.prefix_cache.hits_before": 0,
            "orch.prefix_cache.queries_total": tokens + prompt,
            "orch.prefix_cache.hits_total": 0,
            "orch.weights": at.get("gen_ai.request.model", "model"),
            **CONDITIONS,
        }
        tokens += prompt
    return found


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
        place: int, parent: int | None, name: str, server: bool, attributes: Mapping[str, Value]
    ) -> Span:
        return Span(
            trace_id=trace_id,
            span_id=f"{place:016x}",
            parent_id=None if parent is None else f"{parent:016x}",
            name=name,
            is_server=server,
            start_ns=start_ns,
            end_ns=end_ns,
            attributes={"measurement_type": label, "orch.pool": "pool", **attributes},
            links=links if server and name != "llm_request" else (),
        )

    of_sidecar: dict[str, Value] = {
        "orch.outcome": outcome,
        "orch.request_id": f"r{number}",
        "orch.profile": SIDECAR_PROFILE,
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
        "gen_ai.request.model": "model",
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
        span(1, None, "/v1/completions", True, of_server),
        span(2, 1, "admission.wait", False, {}),
        span(3, 1, "engine.request", False, of_sidecar),
        *(
            span(4 + index, 3, "llm_request", True, {**of_engine, **(decode or {})})
            for index in range(decoded)
        ),
    ]


def alone(number: int, start_s: float, end_s: float, **more: Any) -> list[Span]:
    """Returns a request that was alone in its engine."""
    own = {"label": "single_stream", "sequences": 1, "batch": (4, 1, 1.0)}
    return one(number, start_s, end_s, **{**own, **more})


def traffic_from(*requests: list[Span]) -> Traffic:
    """Builds the traffic in the spans of these requests, which were all that the engine served."""
    return build_traffic(counted(span for request in requests for span in request))

"""One sequence in the engine, as the engine's span `llm_request` shows it.

Pure. Knows the attributes of that span (orch_sidecar/README.md). What a span does not contain is
None, and what needs it is not satisfied.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from pydantic import ValidationError

from orch_sidecar.tools.facts.labels.snapshot import EngineConditions
from orch_sidecar.tools.facts.traces.span import Span

_FIELDS: Final = fields(EngineConditions)

SEQUENCE_SPAN: Final = "llm_request"  # vLLM's

# The counted steps of a sequence lack the last one, which is not known yet when its span ends;
# asynchronous scheduling runs one more, whose token is discarded.
UNCOUNTED_STEPS: Final = 2

# With asynchronous scheduling two are under way when a stop string is found, and a third may begin
# before the engine knows. The last token allows for one of them.
_STOPPING_STEPS: Final = 2


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """The engine's counters, since its epoch, as a sequence ended.

    `request_number`: of the HTTP request, from 1, among all generating requests that entered the
    engine; the same on all its sequences. `requests_total`: those that had entered by the end.
    `decode_steps`, `decode_sequences`: decode-only steps, and the sum of their batches.
    `engine_steps`: steps of any kind since this sequence arrived. `tokens_per_step`: the most
    tokens that a step can generate of a sequence, above 1 with speculative decoding.
    """

    request_number: int
    requests_total: int
    decode_steps: int
    decode_sequences: int
    engine_steps: int
    tokens_per_step: int


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """Prompt tokens looked up and found in the prefix cache since the epoch of the engine.

    `_before`: when the sequence arrived; the others: when it ended.
    """

    queries_before: int
    hits_before: int
    queries: int
    hits: int


@dataclass(frozen=True, slots=True)
class EngineSequence:
    """One sequence in the engine, from its arrival there to its last token.

    `prompt`: the engine's id of its prompt; the sequences of one prompt share it, and its tokens.
    `max_tokens`: the most that its request allowed.
    `engine`: the engine instance, if known; it changes with a restart. `steps`: decode-only steps
    that were counted from its first token to its end; without any there are no batch statistics.
    `queue_s`, `decode_s`, `inference_s`: the engine's own times of waiting for a slot, from first
    to last token, and from the slot to the last token. `served_as`: the first name under which the
    engine serves its model; `weights`: the id or path that it loaded.
    """

    start_ns: int
    end_ns: int
    engine: str | None
    pool: str | None
    profile: str | None
    measurement_type: str | None
    prompt: str
    input_tokens: int
    output_tokens: int
    max_tokens: int | None
    slots: int | None
    steps: int
    batch_max: int | None
    batch_mean: float | None
    queue_s: float
    decode_s: float
    inference_s: float
    counters: EngineCounters | None
    prefix_cache: PrefixCache | None
    conditions: EngineConditions | None
    engine_version: str | None
    precision: str | None
    gpu: str | None
    gpu_count: int | None
    served_as: str | None
    weights: str | None

    @property
    def first_ns(self) -> int:
        """When its first token came, by the engine; when it arrived, where that is not known."""
        return self.end_ns - round(self.decode_s * 1e9) if self.decode_s else self.start_ns

    @property
    def step_s(self) -> float:
        """The mean time of a decode step, 0 where none was counted."""
        return self.decode_s / self.steps if self.steps else 0.0

    @property
    def stopped(self) -> bool:
        """Whether it may have ended with a stop string: it was not as long as was allowed."""
        return self.max_tokens is not None and self.output_tokens < self.max_tokens

    @property
    def discarded_steps(self) -> int:
        """The largest number of its steps after the end of its span.

        vLLM's API server finds stop strings; the engine generates until the abort reaches it.
        """
        return _STOPPING_STEPS if self.stopped else 0


def parse_sequence(span: Span) -> EngineSequence:
    """Parses a span of the engine. Raises ValueError for an attribute of the wrong type."""
    return EngineSequence(
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        engine=_engine(span),
        pool=span.text("orch.pool"),
        profile=span.text("orch.profile"),
        measurement_type=span.text("measurement_type"),
        prompt=span.text("gen_ai.request.id") or span.span_id,
        input_tokens=span.whole("gen_ai.usage.input_tokens") or 0,
        output_tokens=span.whole("gen_ai.usage.output_tokens") or 0,
        max_tokens=span.whole("gen_ai.request.max_tokens"),
        slots=span.whole("orch.slots_total"),
        steps=span.whole("orch.steps") or 0,
        batch_max=span.whole("orch.batch_size.max"),
        batch_mean=span.number("orch.batch_size.mean"),
        queue_s=span.number("gen_ai.latency.time_in_queue") or 0.0,
        decode_s=span.number("gen_ai.latency.time_in_model_decode") or 0.0,
        inference_s=span.number("gen_ai.latency.time_in_model_inference") or 0.0,
        counters=_counters(span),
        prefix_cache=_prefix_cache(span),
        conditions=_conditions(span),
        engine_version=span.text("orch.engine_version"),
        precision=span.text("orch.precision"),
        gpu=span.text("orch.gpu"),
        gpu_count=span.whole("orch.gpu_count"),
        served_as=span.text("gen_ai.request.model"),
        weights=span.text("orch.weights"),
    )


def _engine(span: Span) -> str | None:
    """Returns the engine instance that made a span; a restart changes it."""
    instance = span.text("orch.epoch") or span.resource.get("service.instance.id")
    return None if instance is None else str(instance)


def _wholes(span: Span, *names: str) -> list[int] | None:
    """Returns integer attributes, None unless the span has all of them."""
    values = [value for name in names if (value := span.whole(name)) is not None]
    return values if len(values) == len(names) else None


def _counters(span: Span) -> EngineCounters | None:
    values = _wholes(
        span,
        "orch.request_number",
        "orch.requests_total",
        "orch.decode_steps_total",
        "orch.decode_sequences_total",
        "orch.engine_steps",
        "orch.tokens_per_step",
    )
    return None if values is None else EngineCounters(*values)


def _prefix_cache(span: Span) -> PrefixCache | None:
    names = ("queries_before", "hits_before", "queries_total", "hits_total")
    values = _wholes(span, *(f"orch.prefix_cache.{name}" for name in names))
    return None if values is None else PrefixCache(*values)


def _conditions(span: Span) -> EngineConditions | None:
    """Returns the conditions of the engine, None unless the span has those of every engine."""
    stated: dict[str, Any] = {
        each.name: span.attributes.get(f"orch.{each.name}") for each in _FIELDS
    }
    try:
        return EngineConditions(**{name: v for name, v in stated.items() if v is not None})
    except ValidationError:
        return None

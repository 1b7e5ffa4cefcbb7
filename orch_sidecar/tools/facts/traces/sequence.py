"""One sequence in the engine, as the engine's span `llm_request` shows it.

Pure. Knows the attributes of that span (docs/reference/traces.md). What a span does not contain is
None, and what needs it is not satisfied.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from pydantic import Field, ValidationError

from orch_sidecar.tools.facts.labels.snapshot import EngineConditions
from orch_sidecar.tools.facts.traces.span import Attributes, Parsed, Span

_FIELDS: Final = fields(EngineConditions)

SEQUENCE_SPAN: Final = "llm_request"  # vLLM's

# The counted steps of a sequence lack the last one, which is not known yet when its span ends;
# asynchronous scheduling runs one more, whose token is discarded.
UNCOUNTED_STEPS: Final = 2

# With asynchronous scheduling two are under way when a stop string is found, and a third may begin
# before the engine knows. The last token allows for one of them.
_STOPPING_STEPS: Final = 2


class EngineCounters(Attributes):
    """The engine's counters, since its epoch, as a sequence ended.

    `request_number`: of the HTTP request, from 1, among all generating requests that entered the
    engine; the same on all its sequences. `requests_total`: those that had entered by the end.
    `decode_steps`, `decode_sequences`: decode-only steps, and the sum of their batches.
    `engine_steps`: steps of any kind since this sequence arrived. `tokens_per_step`: the most
    tokens that a step can generate of a sequence, above 1 with speculative decoding.
    """

    request_number: int = Field(validation_alias="orch.request_number")
    requests_total: int = Field(validation_alias="orch.requests_total")
    decode_steps: int = Field(validation_alias="orch.decode_steps_total")
    decode_sequences: int = Field(validation_alias="orch.decode_sequences_total")
    engine_steps: int = Field(validation_alias="orch.engine_steps")
    tokens_per_step: int = Field(validation_alias="orch.tokens_per_step")


class PrefixCache(Attributes):
    """Prompt tokens looked up and found in the prefix cache since the epoch of the engine.

    `_before`: when the sequence arrived; the others: when it ended.
    """

    queries_before: int = Field(validation_alias="orch.prefix_cache.queries_before")
    hits_before: int = Field(validation_alias="orch.prefix_cache.hits_before")
    queries: int = Field(validation_alias="orch.prefix_cache.queries_total")
    hits: int = Field(validation_alias="orch.prefix_cache.hits_total")


class EngineSequence(Attributes):
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
    pool: str | None = Field(None, validation_alias="orch.pool")
    profile: str | None = Field(None, validation_alias="orch.profile")
    measurement_type: str | None = None
    prompt: str
    input_tokens: int = Field(0, validation_alias="gen_ai.usage.input_tokens")
    output_tokens: int = Field(0, validation_alias="gen_ai.usage.output_tokens")
    max_tokens: int | None = Field(None, validation_alias="gen_ai.request.max_tokens")
    slots: int | None = Field(None, validation_alias="orch.slots_total")
    steps: int = Field(0, validation_alias="orch.steps")
    batch_max: int | None = Field(None, validation_alias="orch.batch_size.max")
    batch_mean: float | None = Field(None, validation_alias="orch.batch_size.mean")
    queue_s: float = Field(0.0, validation_alias="gen_ai.latency.time_in_queue")
    decode_s: float = Field(0.0, validation_alias="gen_ai.latency.time_in_model_decode")
    inference_s: float = Field(0.0, validation_alias="gen_ai.latency.time_in_model_inference")
    counters: EngineCounters | None
    prefix_cache: PrefixCache | None
    conditions: EngineConditions | None
    engine_version: str | None = Field(None, validation_alias="orch.engine_version")
    precision: str | None = Field(None, validation_alias="orch.precision")
    gpu: str | None = Field(None, validation_alias="orch.gpu")
    gpu_count: int | None = Field(None, validation_alias="orch.gpu_count")
    served_as: str | None = Field(None, validation_alias="gen_ai.request.model")
    weights: str | None = Field(None, validation_alias="orch.weights")

    @property
    def first_ns(self) -> int:
        """When its first token came, by the engine; when it arrived, where that is not known."""
        return self.end_ns - round(self.decode_s * 1e9) if self.decode_s else self.start_ns

    @property
    def slot_ns(self) -> int:
        """When it got its slot, by the engine; as `first_ns` where that is not known."""
        inference_s = self.inference_s
        return self.end_ns - round(inference_s * 1e9) if inference_s else self.first_ns

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
    stated = span.attributes
    instance = stated.get("orch.epoch") or span.resource.get("service.instance.id")
    return span.parsed(
        EngineSequence,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        engine=None if instance is None else str(instance),
        prompt=stated.get("gen_ai.request.id") or span.span_id,
        counters=_whole(span, EngineCounters),
        prefix_cache=_whole(span, PrefixCache),
        conditions=_conditions(span),
    )


def _whole(span: Span, model: type[Parsed]) -> Parsed | None:
    """Returns the attributes of a model, None unless the span has all of them."""
    names = (str(field.validation_alias) for field in model.model_fields.values())
    return span.parsed(model) if all(name in span.attributes for name in names) else None


def _conditions(span: Span) -> EngineConditions | None:
    """Returns the conditions of the engine, None unless the span has those of every engine."""
    stated = ((each.name, span.attributes.get(f"orch.{each.name}")) for each in _FIELDS)
    known: dict[str, Any] = {name: value for name, value in stated if value is not None}
    try:
        return EngineConditions(**known)
    except ValidationError:
        return None

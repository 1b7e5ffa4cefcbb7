"""Labels vLLM's spans with how the engine was batching while it served a request.

Every span has `measurement_type`, those of the engine's start included. vLLM creates a tracer
provider in each of its processes, and opens spans around the start of a worker before it loads
plugins there; the SDK keeps no list of open spans, so they are found among all objects, once.

vLLM creates an `llm_request` span for each finished request in the output processor, just before
it records the statistics of the same step: the steps known when the span ends lack the last one,
and so do the counters of steps.
The batch statistics need the times that vLLM sets on the span after its start. The SDK's hook for
that, `_on_ending`, receives a span that is already read-only (SDK 1.45), so the span's own `end`
is wrapped at its start: that is the last moment at which the span can be modified.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider
from opentelemetry.util.types import AttributeValue

from vllm_plugin.contracts.profile import Profile
from vllm_plugin.state.engine_state import EngineState

REQUEST_SPAN: Final = "llm_request"

# vLLM's names (vllm/tracing/utils.py). Those of token counts are deprecated in OpenTelemetry.
_PROMPT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
_COMPLETION_TOKENS: Final = "gen_ai.usage.completion_tokens"
_TTFT_S: Final = "gen_ai.latency.time_to_first_token"
_REQUEST_ID: Final = "gen_ai.request.id"


class SpanLabeller(SpanProcessor):
    """Adds `measurement_type` to every span."""

    def __init__(self, profile: Profile) -> None:
        self.labels: Mapping[str, str] = {
            "measurement_type": profile.measurement_type.value,
            "orch.profile": profile.name,
        }

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        span.set_attributes(self.labels)


def label_process(profile: Profile) -> bool:
    """Labels the open spans of this process, and all spans from now on.

    Returns False if the process has no tracer provider of the SDK yet.
    """
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        return False
    processor = SpanLabeller(profile)
    provider.add_span_processor(processor)
    for each in gc.get_objects():
        # Not isinstance: that reads the object's __class__, and a lazy module would load.
        if issubclass(type(each), Span) and each.is_recording():
            each.set_attributes(processor.labels)
    return True


def engine_labels(engine_state: EngineState) -> Mapping[str, str | int | bool]:
    """Returns the labels that all request spans of an engine have: `span_encoder` adds them.

    The conditions are complete when the first request has finished.
    """
    facts, conditions = engine_state.facts, asdict(engine_state.conditions)
    return {
        "orch.batching": facts.batching,
        "orch.slots_total": facts.slots_total,
        "orch.pool": facts.pool,
        "orch.engine_version": facts.engine_version,
        "orch.epoch": facts.epoch,
        "orch.gpu": facts.hardware.gpu,
        "orch.gpu_count": facts.hardware.gpu_count,
        "orch.precision": facts.hardware.precision,
        "orch.weights": facts.weights,
        **{f"orch.{name}": value for name, value in conditions.items()},
        "orch.tokens_per_step": facts.tokens_per_step,
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": facts.models[0],
    }


class RequestSpanLabeller(SpanProcessor):
    """Adds the engine's counters, and what differs from request to request, to request spans.

    The counters are cumulative, so that the spans of a window show whether it has others' requests
    or sequences: their own numbers and steps must account for all between the first and the last.
    """

    def __init__(self, engine_state: EngineState) -> None:
        self._engine_state = engine_state

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if span.name != REQUEST_SPAN:
            return
        end = span.end

        def label_and_end(end_time: int | None = None) -> None:
            del span.end  # restores the method of the class
            self._label(span)
            end(end_time)

        span.end = label_and_end  # type: ignore[method-assign]

    def _label(self, span: Span) -> None:
        given = span.attributes or {}
        request_id = str(given.get(_REQUEST_ID, ""))
        labels: dict[str, AttributeValue] = {
            # vLLM prefixes ids by endpoint; what is not a plain completion is a chat.
            "gen_ai.operation.name": (
                "text_completion" if request_id.startswith("cmpl-") else "chat"
            ),
        }
        for vllm_name, name in (
            (_PROMPT_TOKENS, "gen_ai.usage.input_tokens"),
            (_COMPLETION_TOKENS, "gen_ai.usage.output_tokens"),
        ):
            if (count := given.get(vllm_name)) is not None:
                labels[name] = count
        self._count(span, labels)
        self._describe_steps(span.start_time, given.get(_TTFT_S), labels)
        span.set_attributes(labels)

    def _count(self, span: Span, labels: dict[str, AttributeValue]) -> None:
        """Adds the engine's counters: as they are now, and as they were when the request came."""
        engine_state = self._engine_state
        parent = span.parent
        if parent is not None:
            number = engine_state.request_numbers.of((parent.trace_id, parent.span_id))
            if number is not None:
                labels["orch.request_number"] = number
        labels["orch.requests_total"] = engine_state.leases.entered
        labels["orch.decode_steps_total"] = engine_state.speed.steps.decode_count
        labels["orch.decode_sequences_total"] = engine_state.speed.steps.decode_sequences
        prefix_cache = engine_state.prefix_cache
        labels["orch.prefix_cache.queries_total"] = prefix_cache.now.queries
        labels["orch.prefix_cache.hits_total"] = prefix_cache.now.hits
        # vLLM starts the span at the arrival of the request.
        before = None if span.start_time is None else prefix_cache.before(span.start_time / 1e9)
        if before is not None:
            labels["orch.prefix_cache.queries_before"] = before.queries
            labels["orch.prefix_cache.hits_before"] = before.hits

    def _describe_steps(
        self, arrived_ns: int | None, first_token_s: object, labels: dict[str, AttributeValue]
    ) -> None:
        """Adds the decode steps since the first token, and all steps since the arrival.

        vLLM takes both times by the clock by which steps are reported here, as it processes the
        output of the engine core: a busy API server delays all of them alike.
        """
        if arrived_ns is None or not isinstance(first_token_s, int | float):
            return
        ring = self._engine_state.speed.steps
        steps = ring.since(arrived_ns / 1e9 + first_token_s)
        labels["orch.steps"] = steps.steps
        labels["orch.engine_steps"] = ring.count_since(arrived_ns / 1e9)
        if steps.steps:
            labels["orch.batch_size.max"] = steps.largest
            labels["orch.batch_size.mean"] = steps.mean

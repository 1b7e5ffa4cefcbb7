"""Labels on vLLM's spans: how the engine was batching while it served this request.

Every span has `measurement_type`, those of the engine's start included. vLLM makes a tracer
provider in each of its processes, and opens spans around the start of a worker before it loads
plugins there; the SDK keeps no list of open spans, so these are found among all objects, once.

vLLM makes one `llm_request` span per finished request, in the output processor and just before
the statistics of the same step are recorded: the steps known when it ends lack the last one.
The batch statistics need the times that vLLM sets on the span after its start. The SDK's hook
for that, `_on_ending`, gets a span that is sealed already (SDK 1.45), so the span's own `end`
is wrapped at its start: the last moment at which it can be written to.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider

from vllm_plugin.board import Board
from vllm_plugin.profile import Profile

REQUEST_SPAN: Final = "llm_request"

# vLLM's names (vllm/tracing/utils.py). Those of the token counts are deprecated in OTel.
_PROMPT_TOKENS: Final = "gen_ai.usage.prompt_tokens"
_COMPLETION_TOKENS: Final = "gen_ai.usage.completion_tokens"
_INFERENCE_S: Final = "gen_ai.latency.time_in_model_inference"
_REQUEST_ID: Final = "gen_ai.request.id"


class LabelSpans(SpanProcessor):
    """Adds `measurement_type` to every span."""

    def __init__(self, profile: Profile) -> None:
        self.labels: Mapping[str, str] = {
            "measurement_type": profile.measurement_type.value,
            "orch.profile": profile.name,
        }

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        span.set_attributes(self.labels)


def label_process(profile: Profile) -> bool:
    """Labels all spans of this process from now on, and those that are open.

    Returns whether there is a tracer provider to do so.
    """
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        return False
    processor = LabelSpans(profile)
    provider.add_span_processor(processor)
    for each in gc.get_objects():
        # Not isinstance: that asks the object itself, and a lazy module would load for it.
        if issubclass(type(each), Span) and each.is_recording():
            each.set_attributes(processor.labels)
    return True


class LabelRequests(SpanProcessor):
    """Adds the batch statistics to request spans."""

    def __init__(self, board: Board) -> None:
        self._board = board
        facts = board.facts
        self._request: Mapping[str, str | int | bool] = {
            "orch.batching": facts.batching,
            "orch.slots_total": facts.slots_total,
            "orch.pool": facts.pool,
            "orch.engine_version": facts.engine_version,
            "orch.epoch": facts.epoch,
            "orch.gpu": facts.hardware.gpu,
            "orch.gpu_count": facts.hardware.gpu_count,
            "orch.precision": facts.hardware.precision,
            "gen_ai.provider.name": "vllm",
            "gen_ai.request.model": facts.models[0],
        }

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if span.name != REQUEST_SPAN:
            return
        end = span.end

        def label_and_end(end_time: int | None = None) -> None:
            del span.end  # the class's method is back
            self._label(span)
            end(end_time)

        span.end = label_and_end  # type: ignore[method-assign]

    def _label(self, span: Span) -> None:
        given = span.attributes or {}
        span.set_attributes(self._request)
        request_id = str(given.get(_REQUEST_ID, ""))
        span.set_attribute(
            "gen_ai.operation.name",
            # vLLM prefixes its ids by endpoint; what is not a plain completion is a chat.
            "text_completion" if request_id.startswith("cmpl-") else "chat",
        )
        for theirs, standard in (
            (_PROMPT_TOKENS, "gen_ai.usage.input_tokens"),
            (_COMPLETION_TOKENS, "gen_ai.usage.output_tokens"),
        ):
            if (count := given.get(theirs)) is not None:
                span.set_attribute(standard, count)
        inference_s = given.get(_INFERENCE_S)
        if not isinstance(inference_s, int | float):
            return
        batches = self._board.steps.since(time.time() - inference_s)
        span.set_attribute("orch.steps", batches.steps)
        if batches.steps:
            span.set_attribute("orch.batch_size.max", batches.largest)
            span.set_attribute("orch.batch_size.mean", batches.mean)

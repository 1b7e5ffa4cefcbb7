"""A request, and its sequences in the engine, as the spans of sidecar and engine show them.

Pure. Knows the attributes of this project's spans (docs/reference/traces.md) and what they mean. A
request is the server span of the sidecar that the client called, and all spans below it: one or
several attempts to reach the engine, perhaps through another sidecar, and a span of the engine for
each sequence that it decoded. What a span does not contain is None, and what needs it is not
satisfied.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AliasGenerator, BeforeValidator, ConfigDict, Field, ValidationError

from orch_sidecar.tools.facts.labels.measured import Engine
from orch_sidecar.tools.facts.labels.snapshot import Settings, settings_in
from orch_sidecar.tools.facts.tables.row import format_engine
from orch_sidecar.tools.facts.traces.spans import Attributes, Link, Span

# The counted steps of a sequence lack the last one, which is not known yet when its span ends;
# asynchronous scheduling runs one more, whose token is discarded.
UNCOUNTED_STEPS: Final = 2

_ORCH: Final = AliasGenerator(validation_alias=lambda name: f"orch.{name}")


class EngineLabels(Attributes):
    """What an engine states on a span: about itself, and its counters since its epoch.

    The counters are those at the end of the sequence, with `_before` at its arrival.
    `request_number`: of the HTTP request, from 1, among all generating requests that entered the
    engine; the same on all its sequences, None of one that is below no other span.
    `requests_total`: those that had entered. `decode_steps_total`, `decode_sequences_total`:
    decode-only steps, and the sum of their batches. `engine_steps`: steps of any kind since this
    sequence arrived. `tokens_per_step`: the most tokens that a step can generate of a sequence,
    above 1 with speculative decoding. `queries`, `hits`: prompt tokens looked up and found in the
    prefix cache; None before what the engine remembers. `weights`: the id or path of the model that
    it loaded; `served_as`: the first name under which it serves it.
    """

    model_config = ConfigDict(alias_generator=_ORCH)

    epoch: str
    slots_total: int
    engine_version: str
    precision: str
    gpu: str
    gpu_count: int
    weights: str
    served_as: str = Field(validation_alias="gen_ai.request.model")
    request_number: int | None = None
    requests_total: int
    decode_steps_total: int
    decode_sequences_total: int
    engine_steps: int = 0
    tokens_per_step: int
    queries_before: int | None = Field(None, validation_alias="orch.prefix_cache.queries_before")
    hits_before: int | None = Field(None, validation_alias="orch.prefix_cache.hits_before")
    queries: int = Field(validation_alias="orch.prefix_cache.queries_total")
    hits: int = Field(validation_alias="orch.prefix_cache.hits_total")
    conditions: Annotated[Settings, BeforeValidator(settings_in)] = Field(
        validation_alias="conditions"
    )

    @property
    def columns(self) -> Engine:
        """The columns of the engine."""
        name = format_engine("vllm", self.engine_version)
        return Engine(name, self.precision, self.gpu, self.gpu_count)


class EngineSequence(Attributes):
    """One sequence in the engine, from its arrival there to its last token.

    `stated`: by its engine, None unless its span has all of it. `prompt`: the engine's id of its
    prompt; the sequences of one prompt share it, and its tokens. `max_tokens`: the most that its
    request allowed. `steps`: decode-only steps that were counted from its first token to its end;
    without any there are no batch statistics. `queue_s`, `decode_s`, `inference_s`: the engine's
    own times of waiting for a slot, from first to last token, and from the slot to the last token.
    """

    start_ns: int
    end_ns: int
    stated: EngineLabels | None
    profile: str | None = Field(None, validation_alias="orch.profile")
    measurement_type: str | None = None
    prompt: str
    input_tokens: int = Field(0, validation_alias="gen_ai.usage.input_tokens")
    output_tokens: int = Field(0, validation_alias="gen_ai.usage.output_tokens")
    max_tokens: int | None = Field(None, validation_alias="gen_ai.request.max_tokens")
    steps: int = Field(0, validation_alias="orch.steps")
    batch_max: int = Field(0, validation_alias="orch.batch_size.max")
    batch_mean: float = Field(0.0, validation_alias="orch.batch_size.mean")
    queue_s: float = Field(0.0, validation_alias="gen_ai.latency.time_in_queue")
    decode_s: float = Field(0.0, validation_alias="gen_ai.latency.time_in_model_decode")
    inference_s: float = Field(0.0, validation_alias="gen_ai.latency.time_in_model_inference")

    @property
    def engine(self) -> EngineLabels:
        """What its engine states. Raises ValueError where that is not known."""
        if self.stated is None:
            raise ValueError("the engine of the sequence is unknown")
        return self.stated

    @property
    def epoch(self) -> str | None:
        """Of its engine, if that is known; it changes with a restart."""
        return None if self.stated is None else self.stated.epoch

    @property
    def first_ns(self) -> int:
        """When its first token came, by the engine; when it arrived, where that is not known."""
        return self.end_ns - round(self.decode_s * 1e9) if self.decode_s else self.start_ns

    @property
    def slot_ns(self) -> int:
        """When it got its slot, by the engine; as `first_ns` where that is not known."""
        return self.end_ns - round(self.inference_s * 1e9) if self.inference_s else self.first_ns

    @property
    def step_s(self) -> float:
        """The mean time of a decode step, 0 where none was counted."""
        return self.decode_s / self.steps if self.steps else 0.0

    @property
    def stopped(self) -> bool:
        """Whether it may have ended with a stop string: it was not as long as was allowed."""
        return self.max_tokens is not None and self.output_tokens < self.max_tokens


def parse_sequence(span: Span) -> EngineSequence:
    """Parses a span of the engine. Raises ValueError for an attribute of the wrong type."""
    return span.parsed(
        EngineSequence,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        prompt=span.attributes.get("gen_ai.request.id") or span.span_id,
        stated=_labels(span),
    )


def _labels(span: Span) -> EngineLabels | None:
    stated = {name: value for name, value in span.attributes.items() if value not in (None, "")}
    named = {name.removeprefix("orch."): value for name, value in stated.items()}
    try:
        return EngineLabels.model_validate({**stated, "conditions": named})
    except ValidationError:
        return None


class Outcome(StrEnum):
    """How a request ended."""

    SERVED = "served"
    FAILED = "failed"  # after it was admitted
    CANCELLED = "cancelled"  # by its client: explicitly, or by disconnecting
    REFUSED = "refused"


# Values of `orch.outcome`; every other value is a rejection by the sidecar, or (`client_error`) by
# the engine.
OUTCOMES: Final = {
    "ok": Outcome.SERVED,
    "engine_error": Outcome.FAILED,
    "engine_failed": Outcome.FAILED,
    "engine_timeout": Outcome.FAILED,
    "client_stalled": Outcome.FAILED,
    "internal_error": Outcome.FAILED,
    "cancelled": Outcome.CANCELLED,
    "cancelled_by_request": Outcome.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to have an engine answer a request; `failed`: its answer was discarded.

    `sequences`: those whose spans are below that of the attempt.
    """

    start_ns: int
    end_ns: int
    failed: bool
    sequences: tuple[EngineSequence, ...]

    @property
    def aborted(self) -> bool:
        """Whether the engine may have worked on sequences that are not those of the answer: vLLM
        exports no span for an aborted request."""
        return self.failed or not self.sequences


class Request(Attributes):
    """One request that has ended: the attributes of its server span, and what is below it. Times
    are nanoseconds since 1970.

    `run`: the digest of the run's secret id. `requested_sequences`: `n` times its prompts.
    `closed_ns`: the end of HTTP. `waited`: start and end of each wait for admission. `attempts`:
    by their start; those to another sidecar count as that sidecar's. `input_tokens`,
    `output_tokens`: as reported to the sidecar, None where they were not. `coalesced`: it received
    the answer of another request's generation; `coalesced_leader`: another request received the
    answer of its generation. `parts`: of one that was divided, each a request to the engine.
    """

    link: Link
    start_ns: int
    closed_ns: int
    waited: tuple[tuple[int, int], ...]
    attempts: tuple[Attempt, ...]
    coalesced_leader: bool
    ended_as: str = Field("", validation_alias="orch.outcome")
    scenario: str | None = Field(None, validation_alias="orch.scenario")
    run: str | None = Field(None, validation_alias="orch.run")
    measurement_type: str | None = None
    model: str | None = Field(None, validation_alias="gen_ai.request.model")
    pool: str | None = Field(None, validation_alias="orch.pool")
    profile: str | None = Field(None, validation_alias="orch.profile")
    service_class: str | None = Field(None, validation_alias="orch.class")
    requested_sequences: int = Field(0, validation_alias="orch.cost")
    stream: bool = Field(False, validation_alias="orch.stream")
    first_byte_s: float | None = Field(None, validation_alias="orch.first_byte_s")
    last_token_s: float | None = Field(None, validation_alias="orch.last_token_s")
    input_tokens: int | None = Field(None, validation_alias="gen_ai.usage.input_tokens")
    output_tokens: int | None = Field(None, validation_alias="gen_ai.usage.output_tokens")
    coalesced: bool = Field(False, validation_alias="orch.coalesced")
    parts: int = Field(0, validation_alias="orch.parts")

    @property
    def outcome(self) -> Outcome:
        return OUTCOMES.get(self.ended_as, Outcome.REFUSED)

    @property
    def end_ns(self) -> int:
        """Its last token, where the answer was streamed and the sidecar observed it; otherwise the
        end of HTTP."""
        last_ns = self._streamed_ns(self.last_token_s)
        return self.closed_ns if last_ns is None else last_ns

    @property
    def first_byte_ns(self) -> int | None:
        """The first byte of a streamed answer."""
        return self._streamed_ns(self.first_byte_s)

    def _streamed_ns(self, after_s: float | None) -> int | None:
        known = self.stream and after_s is not None
        return self.start_ns + round(after_s * 1e9) if known and after_s is not None else None

    @property
    def sequences(self) -> tuple[EngineSequence, ...]:
        """The sequences of the attempt that was answered."""
        return tuple(
            each for attempt in self.attempts if not attempt.failed for each in attempt.sequences
        )

    @property
    def longest_output_tokens(self) -> int | None:
        """The tokens of the longest of its sequences, by the engine; None of one sequence."""
        found = [sequence.output_tokens for sequence in self.sequences]
        return max(found) if len(found) > 1 else None

    @property
    def engine_input_tokens(self) -> int:
        """Input tokens by the engine, those of each prompt once."""
        return sum({sequence.prompt: sequence.input_tokens for sequence in self.sequences}.values())

    @property
    def engine_output_tokens(self) -> int:
        return sum(sequence.output_tokens for sequence in self.sequences)

"""The requests in spans, and their sequences in the engine, as sidecar and engine show them.

Pure. Knows the attributes of this project's spans (docs/reference/traces.md) and what they mean. A
request is the server span of the sidecar that the client called, and all spans below it: one or
several attempts to reach the engine, perhaps through another sidecar, and a span of the engine for
each sequence that it decoded. What a span does not contain is None, and what needs it is not
satisfied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any, Final

from pydantic import Field

from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.measured import Engine
from orch_sidecar.tools.facts.labels.snapshot import Settings, settings_in
from orch_sidecar.tools.facts.tables.row import format_engine
from orch_sidecar.tools.facts.traces.spans import Attributes, Link, Span, Value

_SEQUENCE_SPAN: Final = "llm_request"  # vLLM's
_ENGINE_SPAN: Final = "engine.request"
_WAIT_SPAN: Final = "admission.wait"

# Only the server spans of a sidecar have this attribute.
_REQUEST_ID: Final = "orch.request_id"

# The counted steps of a sequence lack the last one, which is not known yet when its span ends;
# asynchronous scheduling runs one more, whose token is discarded.
UNCOUNTED_STEPS: Final = 2
# Longer than an abort takes to reach the scheduler, and than a step.
_ABORT_WITHIN_NS: Final = 1_000_000_000


class EngineLabels(Attributes, alias_generator=lambda name: f"orch.{name}"):
    """What an engine states on a span: about itself, and its counters since its epoch.

    docs/reference/traces.md has their attributes. Those with `_before` are of the sequence's
    arrival, None before what the engine remembers; the others of its end. `request_number`: None of
    one that is below no other span. `served_as`: the first name under which it serves its model.
    """

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
    conditions: Settings

    @property
    def reported(self) -> Engine:
        """The engine of a row, without its batches."""
        name, settings = format_engine("vllm", self.engine_version), self.conditions
        return Engine(name, self.precision, self.gpu, self.gpu_count, settings=settings)


# Those of a span that lacks some: of no engine, without a number, and nothing else of it is read.
_UNSTATED: Final[Mapping[str, Any]] = {"epoch": ""}


class EngineSequence(Attributes):
    """One sequence in the engine, from its arrival there to its last token.

    `engine`: what it states; without an epoch and a number where its span lacks a part of that.
    `prompt`: the engine's id of its prompt; the sequences of one prompt share it, and its tokens.
    `steps`: those from its first token to its end; without any there are no batch statistics.
    `queue_s`, `decode_s`, `inference_s`: the engine's own times of waiting for a slot, from first
    to last token, and from the slot to the last token.
    """

    start_ns: int
    end_ns: int
    engine: EngineLabels
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
    named = {name.removeprefix("orch."): value for name, value in span.attributes.items()}
    try:
        stated = {**span.attributes, "orch.conditions": settings_in(named)}
        engine = EngineLabels.model_validate(stated)
    except ValueError:
        engine = EngineLabels.model_construct(**_UNSTATED)
    prompt = span.attributes.get("gen_ai.request.id", span.span_id)
    return span.parsed(EngineSequence, prompt=prompt, engine=engine)


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
    **dict.fromkeys(("engine_error", "engine_failed", "engine_timeout"), Outcome.FAILED),
    **dict.fromkeys(("client_stalled", "internal_error"), Outcome.FAILED),
    **dict.fromkeys(("cancelled", "cancelled_by_request"), Outcome.CANCELLED),
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

    @property
    def released_ns(self) -> int:
        """When its sequences had certainly left the engine."""
        return self.end_ns + _ABORT_WITHIN_NS * self.aborted


class Request(Attributes):
    """One request that has ended: the attributes of its server span, and what is below it. Times
    are nanoseconds since 1970.

    `closed_ns`: the end of HTTP. `waited`: start and end of each wait for admission. `attempts`:
    by their start; those to another sidecar count as that sidecar's. `input_tokens`,
    `output_tokens`: as reported to the sidecar, None where they were not. `coalesced`: it received
    the answer of another request's generation; `coalesced_leader`: another request received the
    answer of its generation. `parts`: of one that was divided, each a request to the engine.
    """

    link: Link
    start_ns: int
    closed_ns: int = Field(validation_alias="end_ns")
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
        if after_s is None or not self.stream:
            return None
        return self.start_ns + round(after_s * 1e9)

    @property
    def sequences(self) -> tuple[EngineSequence, ...]:
        """The sequences of the attempt that was answered."""
        return tuple(
            each for attempt in self.attempts if not attempt.failed for each in attempt.sequences
        )

    @property
    def engine_input_tokens(self) -> int:
        """Input tokens by the engine, those of each prompt once."""
        return sum({sequence.prompt: sequence.input_tokens for sequence in self.sequences}.values())

    @property
    def engine_output_tokens(self) -> int:
        return sum(sequence.output_tokens for sequence in self.sequences)


@dataclass(frozen=True, slots=True)
class Traffic:
    """All requests in a set of spans.

    `unfinished`: pool and time of each request without a server span, which has not ended, or whose
    span is missing; the time is without end where it may still run. `orphans`: engine sequences
    that belong to no request of a sidecar.
    """

    requests: tuple[Request, ...]
    unfinished: tuple[tuple[Value | None, Interval], ...]
    orphans: tuple[EngineSequence, ...]

    @property
    def attempts(self) -> Iterator[tuple[Request, Attempt]]:
        """Each with its request."""
        return ((request, each) for request in self.requests for each in request.attempts)


def build_traffic(spans: Iterable[Span]) -> Traffic:
    """Returns the requests in these spans, by their start. Repeated spans count once.

    Raises ValueError for an attribute of the wrong type.
    """
    known = {span.link: span for span in spans}
    below: dict[tuple[str, Link | None], list[Span]] = defaultdict(list)
    for span in known.values():
        below[span.trace_id, _request_above(span, known)].append(span)
    leaders = {
        link
        for span in known.values()
        if _is_request(span) and span.attributes.get("orch.coalesced")
        for link in span.links
    }
    attempts = {span.link for span in known.values() if span.name == _ENGINE_SPAN}
    sequences = (span for span in known.values() if span.name == _SEQUENCE_SPAN)
    orphans = [span for span in sequences if span.parent not in attempts]
    requests, unfinished = [], []
    for (_, link), under in below.items():
        pending = [span for span in under if span.name in (_WAIT_SPAN, _ENGINE_SPAN)]
        if link is not None:
            requests.append(_request(known[link], under, link in leaders))
        elif pending:
            ends = (span.end_ns for span in pending if span.name == _ENGINE_SPAN)
            time = Interval(min(span.start_ns for span in pending), max(ends, default=inf))
            unfinished.append((pending[0].attributes.get("orch.pool"), time))
    # A page and a probe are no requests of a model.
    generating = (
        each for each in requests if each.requested_sequences or each.outcome is not Outcome.SERVED
    )
    return Traffic(
        tuple(sorted(generating, key=lambda request: request.start_ns)),
        tuple(unfinished),
        tuple(parse_sequence(span) for span in orphans),
    )


def _is_request(span: Span) -> bool:
    return span.is_server and _REQUEST_ID in span.attributes


def _request_above(span: Span, known: Mapping[Link, Span]) -> Link | None:
    """Returns the topmost sidecar server span from a span upwards, itself included.

    A parent sidecar's span has a server span of the child sidecar below it for each attempt.
    """
    found, seen = None, set()
    at: Span | None = span
    while at is not None and at.link not in seen:
        seen.add(at.link)
        if _is_request(at):
            found = at.link
        at = known.get(at.parent)
    return found


def _request(server: Span, under: Iterable[Span], leads: bool) -> Request:
    """Returns a request of its server span and all spans under it, itself included.

    An attempt whose answer came from another sidecar has that one's server span below it.
    """
    forwarded = {span.parent_id for span in under if _is_request(span)}
    sequences: dict[str | None, list[EngineSequence]] = defaultdict(list)
    for span in under:
        if span.name == _SEQUENCE_SPAN:
            sequences[span.parent_id].append(parse_sequence(span))
    attempts = [
        # One that failed before its first byte was retried; its sequences were discarded.
        Attempt(
            span.start_ns,
            span.end_ns,
            OUTCOMES.get(str(span.attributes.get("orch.outcome"))) is not Outcome.SERVED,
            tuple(sequences[span.span_id]),
        )
        for span in under
        if span.name == _ENGINE_SPAN and span.span_id not in forwarded
    ]
    waits = (span for span in under if span.name == _WAIT_SPAN)
    return server.parsed(
        Request,
        waited=tuple(sorted((span.start_ns, span.end_ns) for span in waits)),
        attempts=tuple(sorted(attempts, key=lambda attempt: attempt.start_ns)),
        coalesced_leader=leads,
    )

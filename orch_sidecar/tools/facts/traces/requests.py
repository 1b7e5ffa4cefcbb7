"""Reconstructs requests from the spans of sidecar and engine.

Pure. Knows the names and attributes of this project's spans (docs/reference/traces.md) and what
they mean for one request. A request is the server span of the sidecar that the client called, and
all spans below it: one or several attempts to reach the engine, perhaps through another sidecar,
and a span of the engine for each sequence that it decoded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from pydantic import Field

from orch_sidecar.tools.facts.traces.sequence import (
    SEQUENCE_SPAN,
    EngineSequence,
    parse_sequence,
)
from orch_sidecar.tools.facts.traces.spans import Attributes, Link, Span, Value

_ENGINE_SPAN: Final = "engine.request"
_WAIT_SPAN: Final = "admission.wait"

# Only the server spans of a sidecar have this attribute.
_REQUEST_ID: Final = "orch.request_id"


class Outcome(StrEnum):
    """How a request ended."""

    SERVED = "served"
    FAILED = "failed"  # after it was admitted
    CANCELLED = "cancelled"  # by its client: explicitly, or by disconnecting
    REFUSED = "refused"


# Values of `orch.outcome`; every other value is a rejection by the sidecar, or (`client_error`) by
# the engine.
_OUTCOMES: Final = {
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
        return _OUTCOMES.get(self.ended_as, Outcome.REFUSED)

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

    @property
    def answered_tokens(self) -> int:
        """The generated tokens of its answer, by the engine where the sidecar does not know."""
        return self.engine_output_tokens if self.output_tokens is None else self.output_tokens


class Unfinished(NamedTuple):
    """A request without a server span: it has not ended, or its span is missing.

    `end_ns`: None where it may still run.
    """

    start_ns: int
    end_ns: int | None
    pool: Value


@dataclass(frozen=True, slots=True)
class Traffic:
    """All requests in a set of spans.

    `orphans`: engine sequences that belong to no request of a sidecar.
    """

    requests: tuple[Request, ...]
    unfinished: tuple[Unfinished, ...]
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
    requests = [
        _request(known[link], under, leaders)
        for (_, link), under in below.items()
        if link is not None
    ]
    unfinished = (_unfinished(under) for (_, link), under in below.items() if link is None)
    return Traffic(
        tuple(sorted(filter(None, requests), key=lambda request: request.start_ns)),
        tuple(filter(None, unfinished)),
        tuple(parse_sequence(span) for span in known.values() if _is_orphan(span, known)),
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


def _is_orphan(span: Span, known: Mapping[Link, Span]) -> bool:
    """Returns whether this is an engine sequence that no attempt of a sidecar accounts for."""
    parent = known.get(span.parent)
    return span.name == SEQUENCE_SPAN and (parent is None or parent.name != _ENGINE_SPAN)


def _unfinished(under: Iterable[Span]) -> Unfinished | None:
    pending = [span for span in under if span.name in (_WAIT_SPAN, _ENGINE_SPAN)]
    if not pending:
        return None
    ends = [span.end_ns for span in pending if span.name == _ENGINE_SPAN]
    start_ns, pool = min(span.start_ns for span in pending), pending[0].attributes.get("orch.pool")
    return Unfinished(start_ns, max(ends, default=None), pool)


def _request(server: Span, under: list[Span], leaders: set[Link]) -> Request | None:
    """Returns a request, None for what is no request of a model: a page, or a probe."""
    waits = (span for span in under if span.name == _WAIT_SPAN)
    found = server.parsed(
        Request,
        link=server.link,
        start_ns=server.start_ns,
        closed_ns=server.end_ns,
        waited=tuple(sorted((span.start_ns, span.end_ns) for span in waits)),
        attempts=_attempts(under),
        coalesced_leader=server.link in leaders,
    )
    return found if found.requested_sequences or found.outcome is not Outcome.SERVED else None


def _attempts(under: list[Span]) -> tuple[Attempt, ...]:
    """Returns the attempts to reach an engine among the spans of a request.

    An attempt whose answer came from another sidecar has that one's server span below it.
    """
    forwarded = {span.parent_id for span in under if _is_request(span)}
    sequences: dict[str | None, list[EngineSequence]] = defaultdict(list)
    for span in under:
        if span.name == SEQUENCE_SPAN:
            sequences[span.parent_id].append(parse_sequence(span))
    found = (
        # One that failed before its first byte was retried; its sequences were discarded.
        Attempt(
            span.start_ns,
            span.end_ns,
            _OUTCOMES.get(str(span.attributes.get("orch.outcome"))) is not Outcome.SERVED,
            tuple(sequences[span.span_id]),
        )
        for span in under
        if span.name == _ENGINE_SPAN and span.span_id not in forwarded
    )
    return tuple(sorted(found, key=lambda attempt: attempt.start_ns))

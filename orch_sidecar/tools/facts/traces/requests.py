"""Requests, from the spans that the sidecar and the engine made of them.

Pure. Knows the names and attributes of this project's spans (README, "Traces and metrics") and
what they say of one request; what several requests come to is not its business. A request is the
server span of the sidecar that the client spoke to, and whatever hangs under it: its way to the
engine, once or several times, by way of another sidecar or not, and one span of the engine for
each sequence that was decoded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from orch_sidecar.tools.facts.traces.span import Kind, Link, Span

_ENGINE_SPAN: Final = "engine.request"
_WAIT_SPAN: Final = "admission.wait"
_DECODE_SPAN: Final = "llm_request"  # vLLM's

# What the sidecar's server span has, and no span of anybody else.
_REQUEST_ID: Final = "orch.request_id"
_COALESCED: Final = "orch.coalesced"


class Outcome(StrEnum):
    """How a request ended."""

    SERVED = "served"
    FAILED = "failed"  # after it had been admitted
    CANCELLED = "cancelled"  # by its client, with a word or by going away
    REFUSED = "refused"


# Values of `orch.outcome`; every other one is a refusal by the sidecar, or (`client_error`) by the
# engine.
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
class Decode:
    """One sequence in the engine, from its arrival there to its last token.

    `prompt`: the engine's id of the prompt that it belongs to; several sequences of one prompt
    repeat it, and its tokens. `engine`: which one it was, where that is told; restarted, it is
    another. `steps` are those that were known at the end; without one there are no batch
    statistics.
    """

    start_ns: int
    end_ns: int
    engine: str | None
    pool: str | None
    measurement_type: str | None
    prompt: str
    input_tokens: int
    output_tokens: int
    steps: int
    batch_max: int | None
    batch_mean: float | None
    engine_version: str | None
    precision: str | None
    gpu: str | None
    gpu_count: int | None


@dataclass(frozen=True, slots=True)
class Request:
    """One request that has ended. Times are nanoseconds since 1970.

    `sequences`: how many it would put into the engine (`n` times its prompts). `dispatched`: when
    it was with an engine, or thought to be, each time. `decodes`: of the attempt that was answered.
    `input_tokens`, `output_tokens`: as the sidecar was told, which not every stream tells.
    `first_byte_ns`: of a streamed answer. `coalesced`: it got the answer of another request's
    decode; `led`: another one got that of its decode.
    """

    trace_id: str
    span_id: str
    scenario: str | None
    measurement_type: str | None
    model: str | None
    pool: str | None
    profile: str | None
    service_class: str | None
    outcome: Outcome
    sequences: int
    start_ns: int
    end_ns: int
    first_byte_ns: int | None
    input_tokens: int | None
    output_tokens: int | None
    dispatched: tuple[tuple[int, int], ...]
    decodes: tuple[Decode, ...]
    coalesced: bool
    led: bool

    @property
    def decoded_input_tokens(self) -> int:
        """As the engine counted them: those of each prompt once."""
        return sum({decode.prompt: decode.input_tokens for decode in self.decodes}.values())

    @property
    def decoded_output_tokens(self) -> int:
        return sum(decode.output_tokens for decode in self.decodes)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What is known of a request without its server span: it has not ended, or is not told of.

    `end_ns`: None where it may still run.
    """

    start_ns: int
    end_ns: int | None
    pool: str | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """All that a set of spans tells of. `strays`: in the engine, and of no request of a sidecar."""

    requests: tuple[Request, ...]
    unfinished: tuple[Unfinished, ...]
    strays: tuple[Decode, ...]


def build_traffic(spans: Iterable[Span]) -> Traffic:
    """The requests of these spans, by their start. A span that comes twice counts once.

    Raises ValueError for an attribute that is not of its type.
    """
    traces: dict[str, dict[str, Span]] = defaultdict(dict)
    for span in spans:
        traces[span.trace_id][span.span_id] = span
    followers = (span for trace in traces.values() for span in trace.values() if _is_request(span))
    leaders = {link for span in followers if span.flag(_COALESCED) for link in span.links}
    requests: list[Request] = []
    unfinished: list[Unfinished] = []
    strays: list[Decode] = []
    for trace in traces.values():
        below: dict[str | None, list[Span]] = defaultdict(list)
        for span in trace.values():
            below[_request_above(span, trace)].append(span)
        for span_id, under in below.items():
            if span_id is not None:
                server = trace[span_id]
                if server.whole("orch.cost") or _outcome(server) is not Outcome.SERVED:
                    requests.append(_request(server, under, leaders))
                continue
            strays += [_decode(span) for span in under if _strays(span, trace)]
            own = [span for span in under if span.name in (_WAIT_SPAN, _ENGINE_SPAN)]
            if own:
                unfinished.append(_unfinished(own))
    requests.sort(key=lambda request: request.start_ns)
    return Traffic(tuple(requests), tuple(unfinished), tuple(strays))


def _is_request(span: Span) -> bool:
    return span.kind is Kind.SERVER and _REQUEST_ID in span.attributes


def _request_above(span: Span, trace: dict[str, Span]) -> str | None:
    """The topmost server span of a sidecar on the way up from a span, itself included.

    Under that of a sidecar above another one there is one of the latter for each attempt.
    """
    found, seen = None, set()
    at: Span | None = span
    while at is not None and at.span_id not in seen:
        seen.add(at.span_id)
        if _is_request(at):
            found = at.span_id
        at = trace.get(at.parent_id or "")
    return found


def _strays(span: Span, trace: dict[str, Span]) -> bool:
    """Whether this is a decode that no sidecar's span in its trace tells of."""
    parent = trace.get(span.parent_id or "")
    return span.name == _DECODE_SPAN and (parent is None or parent.name != _ENGINE_SPAN)


def _unfinished(own: list[Span]) -> Unfinished:
    ends = [span.end_ns for span in own if span.name == _ENGINE_SPAN]
    return Unfinished(
        start_ns=min(span.start_ns for span in own),
        end_ns=max(ends, default=None),
        pool=own[0].text("orch.pool"),
    )


def _outcome(server: Span) -> Outcome:
    return _OUTCOMES.get(server.text("orch.outcome") or "", Outcome.REFUSED)


def _request(server: Span, under: list[Span], leaders: set[Link]) -> Request:
    attempts = [span for span in under if span.name == _ENGINE_SPAN]
    # One that failed before its first byte was tried again; its sequences were thrown away.
    failed = {span.span_id for span in attempts if _outcome(span) is not Outcome.SERVED}
    first_byte_s = server.number("orch.first_byte_s") if server.flag("orch.stream") else None
    return Request(
        trace_id=server.trace_id,
        span_id=server.span_id,
        scenario=server.text("orch.scenario"),
        measurement_type=server.text("measurement_type"),
        model=server.text("gen_ai.request.model"),
        pool=server.text("orch.pool"),
        profile=server.text("orch.profile"),
        service_class=server.text("orch.class"),
        outcome=_outcome(server),
        sequences=server.whole("orch.cost") or 0,
        start_ns=server.start_ns,
        end_ns=server.end_ns,
        first_byte_ns=None if first_byte_s is None else server.start_ns + round(first_byte_s * 1e9),
        input_tokens=server.whole("gen_ai.usage.input_tokens"),
        output_tokens=server.whole("gen_ai.usage.output_tokens"),
        dispatched=tuple(sorted((span.start_ns, span.end_ns) for span in attempts)),
        decodes=tuple(
            _decode(span)
            for span in under
            if span.name == _DECODE_SPAN and span.parent_id not in failed
        ),
        coalesced=server.flag(_COALESCED),
        led=Link(server.trace_id, server.span_id) in leaders,
    )


def _decode(span: Span) -> Decode:
    return Decode(
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        engine=_engine(span),
        pool=span.text("orch.pool"),
        measurement_type=span.text("measurement_type"),
        prompt=span.text("gen_ai.request.id") or span.span_id,
        input_tokens=span.whole("gen_ai.usage.input_tokens") or 0,
        output_tokens=span.whole("gen_ai.usage.output_tokens") or 0,
        steps=span.whole("orch.steps") or 0,
        batch_max=span.whole("orch.batch_size.max"),
        batch_mean=span.number("orch.batch_size.mean"),
        engine_version=span.text("orch.engine_version"),
        precision=span.text("orch.precision"),
        gpu=span.text("orch.gpu"),
        gpu_count=span.whole("orch.gpu_count"),
    )


def _engine(span: Span) -> str | None:
    """Which engine made a span: another one, or one that was restarted, is another."""
    instance = span.text("orch.epoch") or span.resource.get("service.instance.id")
    return None if instance is None else str(instance)

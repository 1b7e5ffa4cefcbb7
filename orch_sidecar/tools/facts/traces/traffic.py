"""The traffic in spans: its requests, and the scenarios of those that were measured together.

Pure. The requests of a scenario, which may make one figure, have the same labels and ran on engines
of one kind. A client can mark them with an id, which tolerates a longer pause; without one, a
scenario ends where nothing of its kind ran for a while. Whether a scenario earns its label is
decided elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Final, NamedTuple

from orch_sidecar.tools.facts.traces.requests import (
    OUTCOMES,
    Attempt,
    EngineSequence,
    Outcome,
    Request,
    parse_sequence,
)
from orch_sidecar.tools.facts.traces.spans import Link, Span, Value
from vllm_plugin.contracts.lease_protocol import timestamp

_SEQUENCE_SPAN: Final = "llm_request"  # vLLM's
_ENGINE_SPAN: Final = "engine.request"
_WAIT_SPAN: Final = "admission.wait"

# Only the server spans of a sidecar have this attribute.
_REQUEST_ID: Final = "orch.request_id"

# `orch bench` adds this to the id of a run for the warm-up requests before it.
WARMUP: Final = ".warmup"

# A scenario with an id also ends after a pause of this length. Traces are read for this long before
# and after the requested interval, too: they show whether the interval cuts a scenario, so that its
# choice cannot pick requests. As long as MLPerf's shortest run.
ID_PAUSE_S: Final = 600.0
# The shortest pause that may end a scenario without an id: single requests are no scenario.
LEAST_GAP_S: Final = 10.0


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
    return span.name == _SEQUENCE_SPAN and (parent is None or parent.name != _ENGINE_SPAN)


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
        if span.name == _SEQUENCE_SPAN:
            sequences[span.parent_id].append(parse_sequence(span))
    found = (
        # One that failed before its first byte was retried; its sequences were discarded.
        Attempt(
            span.start_ns,
            span.end_ns,
            OUTCOMES.get(str(span.attributes.get("orch.outcome"))) is not Outcome.SERVED,
            tuple(sequences[span.span_id]),
        )
        for span in under
        if span.name == _ENGINE_SPAN and span.span_id not in forwarded
    )
    return tuple(sorted(found, key=lambda attempt: attempt.start_ns))


@dataclass(frozen=True)
class Scenario:
    """Requests that were measured together, by their arrival; at least one.

    `key`: one of them, whose labels all of them have. `traffic`: all requests that were read.
    `before`, `after`: requests of the scenario that arrived outside of the requested interval.
    """

    traffic: Traffic
    key: Request
    requests: tuple[Request, ...]
    before: tuple[Request, ...] = ()
    after: tuple[Request, ...] = ()

    @property
    def start_ns(self) -> int:
        return self.requests[0].start_ns

    @property
    def end_ns(self) -> int:
        return max(request.end_ns for request in self.requests)

    @property
    def name(self) -> str:
        """Its id, or when it began (UTC)."""
        return self.key.scenario or timestamp(self.start_ns / 1e9)

    @property
    def is_warmup(self) -> bool:
        return self.key.scenario is not None and self.key.scenario.endswith(WARMUP)

    def ended(self, outcome: Outcome) -> tuple[Request, ...]:
        return tuple(request for request in self.requests if request.outcome is outcome)

    @cached_property
    def served(self) -> tuple[Request, ...]:
        return self.ended(Outcome.SERVED)

    @cached_property
    def sequences(self) -> tuple[EngineSequence, ...]:
        """The sequences of the requests that were served."""
        return tuple(sequence for each in self.served for sequence in each.sequences)

    @cached_property
    def attempts(self) -> list[tuple[Request, Attempt]]:
        """All attempts to reach its engines, with their requests; those of others, too."""
        return [each for each in self.traffic.attempts if each[0].pool == self.key.pool]

    @cached_property
    def engine_ahead_ns(self) -> int:
        """By how much the engine's clock is ahead of the sidecar's at least, negative behind.

        It is the smallest difference by which all sequences lie within their requests; 0 where none
        is needed, or there is none. Hosts that keep their clocks by NTP differ by some
        milliseconds, which is as long as the pause between two runs.
        """
        found = [(request, each) for request in self.served for each in request.sequences]
        least = max((each.end_ns - request.closed_ns for request, each in found), default=0)
        largest = min((each.start_ns - request.start_ns for request, each in found), default=0)
        return max(least, min(largest, 0)) if least <= largest else 0


def group_scenarios(
    traffic: Traffic, gap_s: float, first_ns: float = -inf, last_ns: float = inf
) -> list[Scenario]:
    """Groups requests into scenarios, by their start; some that were rejected belong to none.

    `gap_s`: without an id, a scenario ends where nothing of its kind ran for this long; with one,
    for `ID_PAUSE_S`. `first_ns`, `last_ns`: the requested interval, with both ends. Requests
    that arrived outside of it only show that a scenario is cut: those of `margin_s` must be in
    the traffic.
    """
    labelled: dict[tuple[object, ...], list[Request]] = defaultdict(list)
    unlabelled: list[Request] = []
    for request in traffic.requests:
        labels = _labels(request)
        (unlabelled if labels is None else labelled[labels]).append(request)
    whole: list[list[Request]] = []
    for requests in labelled.values():
        pause_s = gap_s if requests[0].scenario is None else margin_s(gap_s)
        for part in _split_at_gaps(requests, pause_s):
            whole += _by_engine(part)
    for request in unlabelled:
        _join(request, whole)
    cut = (_clipped(traffic, each, first_ns, last_ns) for each in whole)
    return sorted(filter(None, cut), key=lambda scenario: scenario.start_ns)


def margin_s(gap_s: float) -> float:
    """Returns how far beyond an interval traces must be read, to see whether scenarios are cut."""
    return max(gap_s, ID_PAUSE_S)


def _labels(request: Request) -> tuple[object, ...] | None:
    """Returns what the requests of a scenario have in common; None of one that was rejected before
    it had a pool. Without the digest of its run's secret id a request is of another scenario,
    although it has the name."""
    own = request.measurement_type, request.model, request.pool
    if None in own:
        return None
    return (*own, request.scenario, request.run, request.profile)


def _split_at_gaps(requests: Sequence[Request], gap_s: float) -> list[list[Request]]:
    """Splits requests, given by their start, where nothing ran for `gap_s`."""
    parts: list[list[Request]] = []
    end_ns = 0
    for request in requests:
        if not parts or request.start_ns - end_ns >= gap_s * 1e9:
            parts.append([])
        parts[-1].append(request)
        end_ns = max(end_ns, request.end_ns)
    return parts


def _by_engine(requests: Sequence[Request]) -> list[list[Request]]:
    """Divides requests by the kind of their engine; one that reached none joins those before it.
    Runs with and without speculative decoding, for instance, are different scenarios."""
    reached = [each.sequences[0].stated if each.sequences else None for each in requests]
    last = next(filter(None, reached), None)
    kinds: dict[object, list[Request]] = defaultdict(list)
    for request, engine in zip(requests, reached, strict=True):
        last = engine or last
        kind = None if last is None else (last.columns, *last.conditions.items())
        kinds[kind].append(request)
    return list(kinds.values())


def _join(request: Request, scenarios: Sequence[list[Request]]) -> None:
    """Adds a request without labels to the nearest scenario that has its id, or in which it ran."""
    near = []
    for requests in scenarios:
        key, end_ns = requests[0], max(each.end_ns for each in requests)
        distance_ns = max(key.start_ns - request.start_ns, request.start_ns - end_ns, 0)
        same = (key.scenario, key.run) == (request.scenario, request.run)
        within = request.scenario is not None or not distance_ns
        if same and within and request.model in (None, key.model):
            near.append((distance_ns, requests))
    if near:
        min(near, key=lambda each: each[0])[1].append(request)


def _clipped(
    traffic: Traffic, requests: Sequence[Request], first_ns: float, last_ns: float
) -> Scenario | None:
    """Returns the part of a scenario that arrived in the interval, None if there is none."""
    ordered = sorted(requests, key=lambda request: request.start_ns)
    kept = tuple(each for each in ordered if first_ns <= each.start_ns <= last_ns)
    before = tuple(each for each in ordered if each.start_ns < first_ns)
    after = tuple(each for each in ordered if each.start_ns > last_ns)
    return Scenario(traffic, requests[0], kept, before, after) if kept else None

"""Compares what an engine counted while a scenario ran with what was traced of it.

Pure. A client can leave no spans: its `traceparent` is unsampled, or it calls the engine directly.
But the engine numbers all requests that enter it, and counts the sequences of each decode step, and
its spans have both. So two sums must agree within the window of a scenario:

- every number, from the smallest of the scenario's requests to the largest total that their spans
  have, is that of a traced request, or of a traced attempt without a span of the engine, since
  vLLM exports none for an aborted request;
- the sequences of all decode steps are no more than the scenario's own sequences can have taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from orch_sidecar.tools.facts.labels.objection import Objection, Reason, count_requests
from orch_sidecar.tools.facts.traces.occupancy import ABORT_WITHIN_NS, engine_ahead_ns
from orch_sidecar.tools.facts.traces.requests import Request, Traffic
from orch_sidecar.tools.facts.traces.scenarios import Scenario
from orch_sidecar.tools.facts.traces.sequence import UNCOUNTED_STEPS, EngineSequence


@dataclass(frozen=True, slots=True)
class DecodeWindow:
    """The decode-only steps of an engine, and the sum of their batches, from the first own
    sequence to the last."""

    steps: int
    sequences: int

    @property
    def mean(self) -> float:
        """The mean batch, 0 without steps."""
        return self.sequences / self.steps if self.steps else 0.0


def decode_window(sequences: Iterable[EngineSequence]) -> DecodeWindow:
    """Returns the window of these sequences of one engine; one without counters adds nothing."""
    counted = [(each, each.counters) for each in sequences if each.counters is not None]
    if not counted:
        return DecodeWindow(0, 0)
    return DecodeWindow(
        steps=max(at.decode_steps for _, at in counted)
        - min(at.decode_steps - each.steps for each, at in counted),
        sequences=max(at.decode_sequences for _, at in counted)
        - min(at.decode_sequences - _sequences_beside(each) for each, at in counted),
    )


def _sequences_beside(each: EngineSequence) -> int:
    """Returns the sum of the batches of a sequence's own steps."""
    return round(each.steps * (each.batch_mean or 0.0))


def prefix_hit_ratio(sequences: Iterable[EngineSequence]) -> float | None:
    """Returns which share of the prompt tokens that were looked up in the window was cached.

    0 where none was looked up; None unless every sequence has the counters.
    """
    caches = [each.prefix_cache for each in sequences]
    known = [cache for cache in caches if cache is not None]
    if not known or len(known) < len(caches):
        return None
    queries = max(at.queries for at in known) - min(at.queries_before for at in known)
    hits = max(at.hits for at in known) - min(at.hits_before for at in known)
    return hits / queries if queries > 0 else 0.0


def counter_objections(scenario: Scenario, traffic: Traffic) -> Iterator[Objection]:
    """Finds requests and sequences in the scenario's engines that left no spans."""
    engines: dict[str, list[EngineSequence]] = defaultdict(list)
    for each in scenario.sequences:
        if each.engine is not None and each.counters is not None:
            engines[each.engine].append(each)
    without = len(scenario.sequences) - sum(map(len, engines.values()))
    if without:
        detail = "have no counters of the engine, so that nobody knows who else was in it"
        yield Objection(
            Reason.NOT_COUNTED, f"{without} of {len(scenario.sequences)} sequences {detail}"
        )
    for engine, own in engines.items():
        yield from _repeated_numbers(engine, traffic)
        aborted = _aborted(scenario, own, traffic)
        yield from _untraced_requests(engine, own, aborted, traffic)
        yield from _untraced_sequences(scenario, engine, own, aborted)


def _numbers(engine: str, sequences: Iterable[EngineSequence]) -> set[int]:
    """Returns the numbers of the requests of these sequences in an engine."""
    return {
        each.counters.request_number
        for each in sequences
        if each.engine == engine and each.counters is not None
    }


def _repeated_numbers(engine: str, traffic: Traffic) -> Iterator[Objection]:
    """An attempt has one number, and no other attempt has it: a copied span shows here."""
    attempts = [
        _numbers(engine, attempt.sequences)
        for request in traffic.requests
        for attempt in request.attempts
        if attempt.sequences
    ]
    numbers = list(chain.from_iterable(attempts))
    repeated = len(numbers) - len(set(numbers))
    several = sum(len(each) > 1 for each in attempts)
    if repeated or several:
        detail = "the engine numbers each request once, these spans have a number of another"
        yield Objection(Reason.CONTRADICTION, f"{count_requests(repeated + several)}: {detail}")


def _aborted(
    scenario: Scenario, own: Sequence[EngineSequence], traffic: Traffic
) -> list[tuple[Request, bool]]:
    """Returns the requests whose attempts were aborted in the engine within the window.

    A request for each attempt, and whether the engine has made no span for it.
    """
    ahead_ns = engine_ahead_ns(scenario)
    start_ns = min(each.start_ns for each in own) - ahead_ns
    end_ns = max(each.end_ns for each in own) - ahead_ns
    return [
        (request, not attempt.sequences)
        for request in traffic.requests
        if request.pool == scenario.key.pool
        for attempt in request.aborted
        if attempt.start_ns <= end_ns and attempt.end_ns + ABORT_WITHIN_NS >= start_ns
    ]


def _untraced_requests(
    engine: str,
    own: Sequence[EngineSequence],
    aborted: Sequence[tuple[Request, bool]],
    traffic: Traffic,
) -> Iterator[Objection]:
    """Finds numbers of requests that have no trace."""
    traced = _numbers(engine, traffic.orphans) | _numbers(
        engine,
        (
            sequence
            for request in traffic.requests
            for attempt in request.attempts
            for sequence in attempt.sequences
        ),
    )
    first = min(_numbers(engine, own))
    last = max(each.counters.requests_total for each in own if each.counters is not None)
    known = sum(first <= number <= last for number in traced)
    without_span = sum(without for _, without in aborted)
    untraced = last - first + 1 - known - without_span
    if untraced > 0:
        detail = f"of the numbers {first} to {last} that the engine gave, {known} are traced"
        if without_span:
            detail += f", and {without_span} of aborted requests"
        yield Objection(Reason.UNTRACED_REQUESTS, f"{count_requests(untraced)}: {detail}")


def _untraced_sequences(
    scenario: Scenario,
    engine: str,
    own: Sequence[EngineSequence],
    aborted: Sequence[tuple[Request, bool]],
) -> Iterator[Objection]:
    """Finds more sequences in the decode steps than the traced ones account for.

    Requests of others that entered before the window have no number in it.
    """
    window = decode_window(own)
    largest = max((each.batch_max for each in own if each.batch_max is not None), default=0)
    largest += sum(request.requested_sequences for request, _ in aborted)
    uncounted = UNCOUNTED_STEPS * len(own)
    if not window.steps <= window.sequences <= window.steps * largest + uncounted:
        detail = (
            f"the engine counted {window.sequences} sequences in {window.steps} decode steps of up "
            f"to {largest}"
        )
        yield Objection(Reason.CONTRADICTION, detail)
    cut = (
        sequence
        for request in (*scenario.before, *scenario.after)
        for sequence in request.sequences
        if sequence.engine == engine
    )
    most = sum(map(_most_steps, chain(own, cut)))
    most += sum(request.requested_sequences * window.steps for request, _ in aborted)
    if window.sequences > most:
        detail = (
            f"the engine decoded {window.sequences} sequences in {window.steps} steps, but those "
            f"that are traced took part in at most {most}"
        )
        yield Objection(Reason.UNTRACED_SEQUENCES, detail)


def _most_steps(each: EngineSequence) -> int:
    """Returns the largest number of decode steps that a sequence can have been in.

    Each generated a token, but for the steps beyond its end; its first token came from a prefill.
    """
    most = each.steps + UNCOUNTED_STEPS
    speculative = each.counters is not None and each.counters.tokens_per_step > 1
    return (most if speculative else min(most, each.output_tokens)) + each.discarded_steps

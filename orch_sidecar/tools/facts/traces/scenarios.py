"""The scenarios in traffic: requests that were measured together, and what their spans show.

Pure. The requests of a scenario, which may make one figure, have the same labels and ran on engines
of one kind. A client can mark them with an id, which tolerates a longer pause; without one, a
scenario ends where nothing of its kind ran for a while. Whether a scenario earns its label is
decided elsewhere, by what is observed here of its load, its batches, and of others.

Spans of the engine show the sequences that it completed, spans of the sidecar those that were
aborted. A client can leave no spans: its `traceparent` is unsampled, or it calls the engine
directly. But the engine numbers all requests that enter it, and counts the sequences of each decode
step, and its spans have both.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from math import inf
from typing import Any, Final

from orch_sidecar.tools.facts.labels.intervals import Interval, pieces
from orch_sidecar.tools.facts.labels.judge import Reason, Rule
from orch_sidecar.tools.facts.labels.observation import Batches, Observation
from orch_sidecar.tools.facts.labels.thresholds import QUEUED_STEPS, UNEXPLAINED_WAIT
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.traces.requests import (
    UNCOUNTED_STEPS,
    Attempt,
    EngineSequence,
    Outcome,
    Request,
    Traffic,
)
from vllm_plugin.contracts.lease_protocol import timestamp
from vllm_plugin.contracts.profile import INTERACTIVE

# `orch bench` adds this to the id of a run for the warm-up requests before it.
WARMUP: Final = ".warmup"

# A scenario with an id also ends after a pause of this length. Traces are read for this long before
# and after the requested interval, too: they show whether the interval cuts a scenario, so that its
# choice cannot pick requests. As long as MLPerf's shortest run.
ID_PAUSE_S: Final = 600.0
# The shortest pause that may end a scenario without an id: single requests are no scenario.
LEAST_GAP_S: Final = 10.0

# vLLM's API server finds stop strings; the engine generates until the abort reaches it. With
# asynchronous scheduling two steps are under way when one is found, and a third may begin before
# the engine knows. The last token allows for one of them.
_STOPPING_STEPS: Final = 2


@dataclass(frozen=True)
class Scenario:
    """Requests that were measured together, by their arrival; at least one.

    `key`: one of them, whose labels all of them have. `traffic`: all requests that were read.
    `before`, `after`: requests of the scenario that arrived outside of the requested interval.
    """

    traffic: Traffic
    key: Request
    requests: Sequence[Request]
    before: Sequence[Request] = ()
    after: Sequence[Request] = ()

    @property
    def start_ns(self) -> int:
        return self.requests[0].start_ns

    @property
    def name(self) -> str:
        """Its id, or when it began (UTC)."""
        return self.key.scenario or timestamp(self.start_ns / 1e9)

    @property
    def is_warmup(self) -> bool:
        return self.key.scenario is not None and self.key.scenario.endswith(WARMUP)

    @cached_property
    def served(self) -> list[Request]:
        return [request for request in self.requests if request.outcome is Outcome.SERVED]

    @cached_property
    def sequences(self) -> list[EngineSequence]:
        """The sequences of the requests that were served."""
        return [sequence for each in self.served for sequence in each.sequences]

    @cached_property
    def engines(self) -> set[str]:
        """The epochs of its engines; one changes with a restart."""
        return {each.engine.epoch for each in self.sequences}

    @cached_property
    def attempts(self) -> list[tuple[Request, Attempt]]:
        """All attempts to reach its engines, with their requests; those of others, too."""
        return [each for each in self.traffic.attempts if each[0].pool == self.key.pool]

    @cached_property
    def aborted(self) -> list[tuple[Request, Attempt]]:
        """The attempts that were aborted in the engine within the window, with their requests."""
        times = [self._time_of(each) for each in self.sequences]
        start_ns, end_ns = min(times).start, max(time.end for time in times)
        return [
            (request, each)
            for request, each in self.attempts
            if each.aborted and each.start_ns <= end_ns and each.released_ns >= start_ns
        ]

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

    def _time_of(self, each: EngineSequence) -> Interval:
        """Returns when a sequence was in the engine, by the clock of the sidecar."""
        return Interval(each.start_ns - self.engine_ahead_ns, each.end_ns - self.engine_ahead_ns)

    @cached_property
    def observation(self) -> Observation:
        """What its spans show. All of its sequences must state their engine; there must be one."""
        found, requests, batches = self.sequences, self.requests, self._batches
        answered = [each.sequences for each in self.served if each.sequences]
        return Observation(
            label=Label(str(self.key.measurement_type)),
            slots=frozenset(each.engine.slots_total for each in found),
            batches=batches,
            answered=len(answered),
            in_flight=[
                Interval(each.start_ns, each.end_ns, each.requested_sequences)
                for each in requests
                if each.outcome is not Outcome.REFUSED
            ],
            running=[
                Interval(min(each.slot_ns for each in own), max(each.end_ns for each in own))
                for own in answered
            ],
            in_engine=[Interval(each.start_ns, each.end_ns) for each in found],
            dispatched=[
                Interval(attempt.start_ns, attempt.end_ns, each.requested_sequences)
                for each in requests
                for attempt in each.attempts
            ],
            waiting=[
                Interval(*waited, each.requested_sequences)
                for each in requests
                for waited in each.waited
            ],
            queued=[  # for longer than the engine's steps take
                Interval(each.start_ns, each.start_ns + round(each.queue_s * 1e9))
                for each in found
                if each.queue_s > QUEUED_STEPS * each.step_s
            ],
            **self._counts(batches),
        )

    @property
    def _batches(self) -> Batches:
        """The decode-only steps from the first of its sequences in one engine to the last."""
        at = [(each.engine, each) for each in self.sequences]
        steps = growth(
            (of.decode_steps_total - each.steps, of.decode_steps_total) for of, each in at
        )
        decoded = growth(
            # Before its own steps, the sum of whose batches is this.
            (of.decode_sequences_total - round(each.steps * each.batch_mean),
             of.decode_sequences_total)
            for of, each in at
        )  # fmt: skip
        largest = max(each.batch_max for each in self.sequences)
        return Batches(steps, largest, decoded / steps if steps else 0.0)

    def _counts(self, batches: Batches) -> dict[str, Any]:
        """Returns what the counters of its engine show, if it is one: the requests that it
        accepted, those of them that are traced, and the most steps that traced sequences were in.

        Others that entered before the window have no number in it, but are in its steps.
        """
        if len(self.engines) > 1:
            return {"sent": len(self.requests)}
        [(_, first), *_] = sorted(numbers(self.engines, self.sequences))
        last = max(each.engine.requests_total for each in self.sequences)
        traced = numbers(
            self.engines,
            chain(self.traffic.orphans, *(each.sequences for _, each in self.traffic.attempts)),
        )
        cut = (of for each in (*self.before, *self.after) for of in each.sequences)
        return {
            "accepted": last - first + 1,
            "sent": sum(first <= number <= last for _, number in traced)
            + sum(not attempt.sequences for _, attempt in self.aborted),
            "in_steps": sum(_most_steps(each) for each in self.sequences)
            + sum(_most_steps(each) for each in cut if each.engine.epoch in self.engines)
            + sum(request.requested_sequences * batches.steps for request, _ in self.aborted),
        }

    def _stays(self) -> Iterator[tuple[Interval, float, bool]]:
        """Yields who was in its engines, as traced, by the clock of the sidecar: from when to when,
        when they had certainly left, and whether they are its own."""
        own = {each.link for each in (*self.requests, *self.before, *self.after)}
        completed = [(sequence, False) for sequence in self.traffic.orphans]
        for request in self.traffic.requests:
            completed += [(each, request.link in own) for each in request.sequences]
        for each, is_own in completed:
            if each.engine.epoch in self.engines:
                stay = self._time_of(each)
                yield stay, stay.end, is_own
        # vLLM exports no span for an aborted request, although it has worked on it.
        for request, attempt in self.attempts:
            if attempt.aborted:
                stay = Interval(attempt.start_ns, attempt.end_ns, request.requested_sequences)
                yield stay, attempt.released_ns, request.link in own

    @property
    def others(self) -> tuple[Rule, ...]:
        """The objections to what its spans show beside the answers."""
        requests, served, found = self.requests, self.served, [*self._stays()]
        start_ns, end_ns = served[0].start_ns, max(each.end_ns for each in served)
        shared = sum(each.coalesced or each.coalesced_leader for each in requests)
        divided = sum(bool(each.parts) for each in requests)
        online = sum(each.service_class == INTERACTIVE for each in requests)
        foreign = sum(
            stay.sequences
            for stay, _, is_own in found
            if not is_own and stay.end >= start_ns and stay.start <= end_ns
        )
        # A step has more sequences than were traced at the time: it had untraced ones.
        started = sorted(stay.start for stay, *_ in found for _ in range(stay.sequences))
        left = sorted(left_ns for stay, left_ns, _ in found for _ in range(stay.sequences))
        times = [(self._time_of(each), each.batch_max) for each in self.sequences]
        unseen = sum(
            largest > bisect_right(started, time.end) - bisect_left(left, time.start)
            for time, largest in times
        )
        # Who waited while none that is traced was dispatched: somebody else had the slot, whose
        # request may have left no span. One that came before the first has no number among theirs.
        waited = (Interval(*each) for request in served for each in request.waited)
        busy = (Interval(each.start_ns, each.released_ns) for _, each in self.attempts)
        waited_s = uncovered(waited, busy) / 1e9
        took_s = sum(each.end_ns - each.start_ns for each in served) / 1e9
        label, engines = self.key.measurement_type, len(self.engines)
        return (
            (Reason.COALESCED, shared, "requests shared a generation, the tokens of which would "
             f"count several times: {shared}"),
            (Reason.DIVIDED, divided, "requests ran in parts: their times are those of several "
             f"requests to the engine: {divided}"),
            (Reason.ONLINE_TRAFFIC, label == Label.OFFLINE and online,
             f"requests of class interactive: {online}"),
            (Reason.OTHER_TRAFFIC, foreign,
             f"foreign sequences in the same engine at the time: {foreign}"),
            (Reason.UNSEEN_TRAFFIC, unseen, "sequences that shared a step with untraced ones "
             f"(tracing must not sample): {unseen}"),
            (Reason.ENGINE_CHANGED, engines > 1,
             f"{engines} engines served it: it was restarted, or there are several"),
            (Reason.OTHER_TRAFFIC,
             label == Label.SINGLE_STREAM and waited_s > UNEXPLAINED_WAIT * took_s,
             f"requests waited {waited_s:.3f} s for admission while none that is traced was "
             f"dispatched, and took {took_s:.3f} s: others had the slot"),
        )  # fmt: skip


def uncovered(intervals: Iterable[Interval], by: Iterable[Interval]) -> float:
    """Returns how long intervals lasted, together, while there was none of the others."""
    counted = (each._replace(sequences=1) for each in intervals)
    others = (each._replace(sequences=0) for each in by)
    alone = (each for each in pieces((*counted, *others)) if each.intervals == each.sequences)
    return sum((each.intervals * each.length for each in alone), 0.0)


def growth(counted: Iterable[tuple[int, int]]) -> int:
    """Returns by how much a counter grew, of which some sequences have what it was before and after
    each of them."""
    found = list(counted)
    return max(after for _, after in found) - min(before for before, _ in found)


def numbers(engines: Set[str], sequences: Iterable[EngineSequence]) -> set[tuple[str, int]]:
    """Returns the numbers of the requests of these sequences in some engines, with the epoch."""
    found = ((each.engine.epoch, each.engine.request_number) for each in sequences)
    return {(epoch, number) for epoch, number in found if epoch in engines and number is not None}


def _most_steps(each: EngineSequence) -> int:
    """Returns the largest number of decode steps that a sequence can have been in.

    Each generated a token, but for the steps beyond its end; its first token came from a prefill.
    """
    in_steps = each.steps + UNCOUNTED_STEPS
    speculative = each.engine.tokens_per_step > 1
    most = in_steps if speculative else min(in_steps, each.output_tokens)
    return most + _STOPPING_STEPS * each.stopped


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
        own = request.measurement_type, request.model, request.pool
        if None in own:  # it was rejected before it had a pool
            unlabelled.append(request)
        else:
            # Without the digest of its run's secret id a request is of another scenario, although
            # it has the name.
            labels = *own, request.scenario, request.run, request.profile
            labelled[labels].append(request)
    whole: list[list[Request]] = []
    for requests in labelled.values():
        pause_s = gap_s if requests[0].scenario is None else margin_s(gap_s)
        for part in _split_at_gaps(requests, pause_s):
            whole += _by_engine(part)
    for request in unlabelled:
        _join(request, whole)
    found = []
    for requests in whole:
        ordered = sorted(requests, key=lambda request: request.start_ns)
        starts = [request.start_ns for request in ordered]
        first, end = bisect_left(starts, first_ns), bisect_right(starts, last_ns)
        if first < end:
            cut = ordered[first:end], ordered[:first], ordered[end:]
            found.append(Scenario(traffic, requests[0], *cut))
    return sorted(found, key=lambda scenario: scenario.start_ns)


def margin_s(gap_s: float) -> float:
    """Returns how far beyond an interval traces must be read, to see whether scenarios are cut."""
    return max(gap_s, ID_PAUSE_S)


def _split_at_gaps(requests: Sequence[Request], gap_s: float) -> list[Sequence[Request]]:
    """Splits requests, given by their start, where nothing ran for `gap_s`."""
    ends = accumulate((each.end_ns for each in requests), max)
    pauses = (each.start_ns - end_ns for each, end_ns in zip(requests[1:], ends, strict=False))
    cuts = [place for place, pause_ns in enumerate(pauses, 1) if pause_ns >= gap_s * 1e9]
    return [requests[first:end] for first, end in pairwise((0, *cuts, len(requests)))]


def _by_engine(requests: Sequence[Request]) -> list[list[Request]]:
    """Divides requests by the kind of their engine; one that reached none joins those before it.
    Runs with and without speculative decoding, for instance, are different scenarios."""
    reached = [
        engine.reported if each.sequences and (engine := each.sequences[0].engine).epoch else None
        for each in requests
    ]
    last = next(filter(None, reached), None)
    kinds: dict[object, list[Request]] = defaultdict(list)
    for request, kind in zip(requests, reached, strict=True):
        last = kind or last
        kinds[last].append(request)
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

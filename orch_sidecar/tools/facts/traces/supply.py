"""Decides whether the requests of a scenario came as its label requires.

Pure. An engine batches what it has: which requests it had at each moment decides what a figure is
about. A batched label requires that requests overlap. Offline means an artificially large batch,
and requires more, all of it measured against `target`: the engine's slots, or all sequences of
the scenario where these are fewer.

- Supply: from the first arrival to the last, `target` sequences are in flight (arrived at the
  sidecar, not ended). Everything at once satisfies that, and so does a closed loop of more clients
  than slots. The time that sequences lacked may be `LACKING` of the window for `target` sequences:
  requests do not arrive in one instant, and a client takes a moment between two of them.
- Batch: a decode step had `target` sequences, less `LACKING` of them, since the slots of sequences
  that end and those of prompts in prefill are not in it. A smaller batch is accepted where memory
  limited it: sequences were queued in the engine although it had a slot for them, or waited for
  admission while fewer than `target` were dispatched; and the batch had those that were not
  queued. A note of the row names the limit (`batch_limited_by`): spans do not show whether it was
  memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from orch_sidecar.tools.facts.traces.objection import Objection, Reason, count_requests
from orch_sidecar.tools.facts.traces.requests import Outcome
from orch_sidecar.tools.facts.traces.scenarios import Scenario
from orch_sidecar.tools.facts.traces.sequence import EngineSequence

LACKING: Final = 0.1

# Waiting for the step that runs is no queue.
_QUEUED_STEPS: Final = 2

# (start, end, sequences)
_Interval = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Batch:
    """The largest batch of an offline scenario against the one that slots and work allow.

    `dispatched`, `queued`: the largest numbers of sequences at once that the sidecar had sent to
    the engine, and that the engine let wait. `supplied`: those that were dispatched or waited for
    admission.
    """

    largest: int
    target: int
    dispatched: int
    queued: int
    supplied: int

    @property
    def limited_by(self) -> str | None:
        """What kept the batch below the target: None if nothing did, "" if spans do not show it."""
        if self.largest >= _nearly(self.target):
            return None
        if self.largest + self.queued >= _nearly(min(self.dispatched, self.target)):
            if self.dispatched >= self.target:
                return "engine" if self.queued else ""
            if self.supplied >= self.target:
                return "admission"
        return ""


def one_by_one(scenario: Scenario) -> Iterator[Objection]:
    """Objects to a batched label whose requests never overlapped."""
    served = scenario.ended(Outcome.SERVED)
    if _most([(each.start_ns, each.end_ns, 1) for each in served]) < 2:
        detail = "each came after the answer of the one before: nothing was batched with another"
        yield Objection(Reason.ONE_BY_ONE, f"{count_requests(len(served))}: {detail}")


def not_offline(scenario: Scenario) -> Iterator[Objection]:
    """Objects to the label offline where load or batch were smaller than the engine's slots."""
    batch = offline_batch(scenario)
    if batch is None:
        return  # without steps, or slots: other objections
    lacking = _lacking(_in_flight(scenario), batch.target)
    if lacking > LACKING:
        detail = (
            f"{lacking:.0%} of {batch.target} sequences were missing before the last request "
            f"arrived: send all at once, or keep {batch.target} in flight"
        )
        yield Objection(Reason.TRICKLE, detail)
    if batch.limited_by == "":
        detail = (
            f"the largest batch was {batch.largest}, slots and work allow {batch.target} "
            f"({batch.dispatched} at once in the engine, {batch.queued} of them queued there)"
        )
        yield Objection(Reason.BATCH_NOT_FULL, detail)


def offline_batch(scenario: Scenario) -> Batch | None:
    """Returns the batch of an offline scenario, None where the spans do not contain it."""
    found = scenario.sequences
    slots = min((each.slots for each in found if each.slots is not None), default=0)
    largest = max((each.batch_max for each in found if each.batch_max is not None), default=0)
    if not slots or not largest:
        return None
    in_flight = _in_flight(scenario)
    dispatched = [
        (attempt.start_ns, attempt.end_ns, each.requested_sequences)
        for each in scenario.requests
        for attempt in each.attempts
    ]
    waiting = [
        (start_ns, end_ns, each.requested_sequences)
        for each in scenario.requests
        for start_ns, end_ns in each.waited
    ]
    return Batch(
        largest=largest,
        target=min(slots, sum(sequences for *_, sequences in in_flight)),
        dispatched=_most(dispatched),
        queued=_most(_queued(found)),
        supplied=_most([*dispatched, *waiting]),
    )


def _in_flight(scenario: Scenario) -> list[_Interval]:
    return [
        (each.start_ns, each.end_ns, each.requested_sequences)
        for each in scenario.requests
        if each.outcome is not Outcome.REFUSED
    ]


def _queued(sequences: Iterable[EngineSequence]) -> list[_Interval]:
    """Returns when sequences waited in the engine for longer than its steps take."""
    return [
        (each.start_ns, each.start_ns + round(each.queue_s * 1e9), 1)
        for each in sequences
        if each.queue_s > _QUEUED_STEPS * each.step_s
    ]


def _nearly(count: int) -> int:
    return count - int(LACKING * count)


def _changes(intervals: Iterable[_Interval]) -> list[tuple[int, int]]:
    """Returns the changes of the number of sequences; one that ends makes room for the next."""
    return sorted(
        change
        for start_ns, end_ns, sequences in intervals
        for change in ((start_ns, sequences), (end_ns, -sequences))
    )


def _most(intervals: Iterable[_Interval]) -> int:
    """Returns the largest number of sequences at once."""
    return max(accumulate(change for _, change in _changes(intervals)), default=0)


def _lacking(in_flight: list[_Interval], target: int) -> float:
    """Returns which share of `target` sequences over the whole window was not in flight until the
    last arrival."""
    last_ns = max(start_ns for start_ns, *_ in in_flight)
    start_ns = min(start_ns for start_ns, *_ in in_flight)
    window_ns = max(end_ns for _, end_ns, _ in in_flight) - start_ns
    if window_ns <= 0:
        return 1.0
    lacking_ns = running = 0
    for (at_ns, change), (next_ns, _) in pairwise(_changes(in_flight)):
        running += change
        if next_ns <= last_ns:
            lacking_ns += max(0, target - running) * (next_ns - at_ns)
    return lacking_ns / (target * window_ns)

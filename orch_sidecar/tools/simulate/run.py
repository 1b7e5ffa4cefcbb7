"""One run: arrivals, a front and an engine, from event to event in virtual time.

Events at the same time are processed in this order: the end of a step, the engine's report,
admission's timer, requests of clients, arrivals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf
from typing import Final

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.tools.facts.labels.figures import CompletedRequest
from orch_sidecar.tools.simulate.engine import Engine, EngineShape, Sequence
from orch_sidecar.tools.simulate.fronts import REPORT_S, MakeFront
from orch_sidecar.tools.simulate.traffic import Arrival, BulkClients
from vllm_plugin.contracts.profile import ServiceClass

# A client whose request was rejected without a Retry-After sends it again after this time.
_CLIENT_RETRY_S: Final = 1.0


@dataclass(slots=True)
class Record:
    """The record of a request. Times are seconds of virtual time.

    `came_at`: its last try. `predicted_s`: the wait predicted at its first try. `refused`: the
    reason at its last try. `of_client`: sent by a client that waits for its end. `reclaimed`: how
    often it had to give its slot back, after `lost_s` in all.
    """

    arrival: Arrival
    sequence: Sequence
    came_at: float
    tries: int = 1
    started_at: float | None = None
    predicted_s: float | None = None
    refused: Reason | None = None
    of_client: bool = False
    reclaimed: int = 0
    lost_s: float = 0.0

    @property
    def completed(self) -> CompletedRequest | None:
        """The input of the figures; None of one that was refused."""
        arrival, sequence = self.arrival, self.sequence
        if sequence.ended_at is None:
            return None
        times = (arrival.at, sequence.first_token_at, sequence.ended_at)
        return CompletedRequest(*times, arrival.prompt, arrival.output)


@dataclass(slots=True)
class Course:
    """The course of a run, to the end of its last request."""

    shape: EngineShape
    seconds: float  # of arrivals
    records: list[Record]
    ended_at: float = 0.0
    tokens: int = 0  # generated during the arrivals
    busy_s: float = 0.0  # sequences in the engine, times seconds, during the arrivals
    peak: int = 0  # sequences in the engine at once
    preemptions: int = 0


class Run:
    """The events of one run."""

    def __init__(
        self,
        shape: EngineShape,
        arrivals: Many[Arrival],
        seconds: float,
        make_front: MakeFront,
        seed: int = 0,
        clients: Iterable[BulkClients] = (),
        passed: Callable[[float], None] | None = None,
    ) -> None:
        """`clients`: beside the arrivals, of different classes. `passed`: gets the seconds of
        virtual time that are over, now and then."""
        self._passed = passed
        self._engine = Engine(shape, seed)
        records = [_record(number, arrival) for number, arrival in enumerate(arrivals)]
        self._scheduled = len(records)
        self._course = Course(shape, seconds, records)
        self._front = make_front(self)
        self._again: list[tuple[float, int]] = []  # requests of clients
        self._now = 0.0
        self._work: dict[ServiceClass, Iterator[Arrival]] = {}
        for each in clients:
            self._work[each.service_class] = each.requests(seed)
            for _ in range(each.count):
                self._next_of_client(each.service_class)
        self._aborting: list[int] = []
        self._step_ends: float | None = None
        self._report_at: float | None = None
        self._reported = -inf

    # Outcomes, called by the front.

    def started(self, number: int) -> None:
        record = self._course.records[number]
        record.started_at = self._now
        self._engine.add(record.sequence)
        self._course.peak = max(self._course.peak, self._engine.held)

    def refused(self, number: int, refusal: Refusal) -> None:
        record = self._course.records[number]
        record.refused = refusal.reason
        after_ms = refusal.retry_after_ms
        again = self._now + (_CLIENT_RETRY_S if after_ms is None else after_ms / 1000)
        if record.of_client and again < self._course.seconds:
            heappush(self._again, (again, number))

    def reclaimed(self, number: int) -> None:
        self._aborting.append(number)

    def queued(self, number: int, predicted_start_ms: int | None) -> None:
        record = self._course.records[number]
        if predicted_start_ms is not None and record.tries == 1:
            record.predicted_s = predicted_start_ms / 1000

    # Events.

    def to_the_end(self) -> Course:
        """Runs until the last request has ended."""
        course, engine, front = self._course, self._engine, self._front
        front.report(engine, 0.0)
        coming = iter(enumerate(course.records[: self._scheduled]))
        number, record = next(coming, (-1, None))
        while True:
            event = front.next_event(self._now)
            times = (
                inf if self._step_ends is None else self._step_ends,
                inf if self._report_at is None else self._report_at,
                inf if event is None else event,
                self._again[0][0] if self._again else inf,
                inf if record is None else record.arrival.at,
            )
            at = min(times)
            if at == inf:
                break
            self._pass_until(at)
            which = times.index(at)
            if which == 0:
                self._end_step()
            elif which == 1:
                self._report()
            elif which == 2:
                front.tick(at)
            elif which == 3:
                self._come_again(heappop(self._again)[1])
            elif record is not None:
                front.arrive(number, record.arrival, at)
                number, record = next(coming, (-1, None))
            if self._step_ends is None:
                self._begin_step()
        course.ended_at, course.preemptions = self._now, engine.preemptions
        return course

    def _pass_until(self, at: float) -> None:
        course, engine = self._course, self._engine
        if self._now < course.seconds:
            running = engine.held - engine.waiting
            course.busy_s += (min(at, course.seconds) - self._now) * running
        self._now = at

    def _begin_step(self) -> None:
        took = self._engine.begin_step(self._now)
        self._step_ends = None if took is None else self._now + took

    def _end_step(self) -> None:
        course, engine, now = self._course, self._engine, self._now
        for sequence in engine.end_step(now):
            record = course.records[sequence.order]
            self._front.ended(sequence.order, record.arrival, now)
            if record.of_client and now < course.seconds:
                self._next_of_client(record.arrival.service_class)
        for number in self._aborting:
            self._abort(course.records[number])
        self._aborting.clear()
        if now <= course.seconds:
            course.tokens = engine.tokens
        if self._report_at is None:
            self._report_at = max(now, self._reported + REPORT_S)
        self._begin_step()

    def _abort(self, record: Record) -> None:
        number = record.sequence.order
        if self._engine.abort(record.sequence):
            began_at = record.sequence.began_at
            record.lost_s += 0.0 if began_at is None else self._now - began_at
            record.sequence = _sequence(number, record.arrival)
            record.started_at = None
            record.reclaimed += 1
            self._front.aborted(number, self._now)

    def _report(self) -> None:
        self._reported, self._report_at = self._now, None
        if self._passed is not None:
            self._passed(self._now)
        self._front.report(self._engine, self._now)

    def _next_of_client(self, service_class: ServiceClass) -> None:
        """A client sends its next request."""
        records = self._course.records
        record = _record(len(records), replace(next(self._work[service_class]), at=self._now))
        record.of_client, record.tries = True, 0
        heappush(self._again, (self._now, len(records)))
        records.append(record)

    def _come_again(self, number: int) -> None:
        record = self._course.records[number]
        record.refused = None
        record.tries += 1
        record.came_at = self._now
        self._front.arrive(number, record.arrival, self._now)


def _record(number: int, arrival: Arrival) -> Record:
    return Record(arrival, _sequence(number, arrival), came_at=arrival.at)


def _sequence(number: int, arrival: Arrival) -> Sequence:
    return Sequence(number, arrival.prompt, arrival.output, arrival.service_class.rank)

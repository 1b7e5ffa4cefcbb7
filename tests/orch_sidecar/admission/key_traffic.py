"""Clients with keys in front of one engine, in virtual time: the real admission, a model of vLLM.

The engine is `orch simulate`'s: a step takes 8 ms and a little for each sequence.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, Decision, EngineReport, Lease, Queued
from orch_sidecar.tools.simulate.engine import Engine, EngineShape, Sequence
from tests.orch_sidecar.admission.examples import class_rules, rules
from vllm_plugin.contracts.profile import ServiceClass


@dataclass(frozen=True)
class Length:
    """Tokens of a request. `max_tokens`: what its client allows; None: it states no limit."""

    prompt: int
    output: int
    max_tokens: int | None = None


@dataclass
class Client:
    """The requests of a key, `at_once` of them at the same time, the next when one has ended."""

    key: bytes
    lengths: Iterable[Length]
    at_once: int = 1
    weight: float = 1.0
    begins_at: float = 0.0
    pause_s: float = 0.001
    requests: list[Answered] = field(default_factory=list)


@dataclass
class Answered:
    """A request and when it came, got its slot, and was answered."""

    length: Length
    came_at: float
    slot_at: float | None = None
    sequence: Sequence | None = None
    predicted_s: float | None = None
    refused: bool = False

    @property
    def wait_s(self) -> float:
        assert self.slot_at is not None
        return self.slot_at - self.came_at

    @property
    def whole_s(self) -> float:
        assert self.sequence is not None
        assert self.sequence.ended_at is not None
        return self.sequence.ended_at - self.came_at

    @property
    def tokens(self) -> int:
        """As they count for a key."""
        return self.length.prompt + 2 * self.length.output

    def served_by(self, at: float) -> bool:
        ended = None if self.sequence is None else self.sequence.ended_at
        return ended is not None and ended <= at


class Traffic:
    """Runs clients until all are served, or until a time."""

    def __init__(
        self,
        clients: Iterable[Client],
        *,
        slots: int = 16,
        fair: bool = True,
        capacity: int = 20_000,
        shape: EngineShape | None = None,
    ) -> None:
        """`fair`: else all requests are without a key, and so first come, first served."""
        self.clients = list(clients)
        self.now = 0.0
        of_class = class_rules(queue_capacity=capacity, max_wait_s=86_400.0)
        self.core = AdmissionController(rules(of_class), random.Random(1))
        self.engine = Engine(replace(shape or EngineShape(), slots=slots))
        self._fair = fair
        self._coming: list[tuple[float, int, Client, Length]] = []
        self._of: dict[str, tuple[Client, Answered]] = {}
        self._left: dict[int, Iterator[Length]] = {}
        self._serial = 0

    def run(self, until: float = float("inf")) -> None:
        for client in self.clients:
            self._left[id(client)] = iter(client.lengths)
            for _ in range(client.at_once):
                self._next_of(client, client.begins_at)
        self._report()
        while self.now < until:
            self._arrive_by(self.now)
            took = self.engine.begin_step(self.now)
            if took is None:
                if not self._coming:
                    return
                self.now = min(self._coming)[0]
                continue
            ends = self.now + took
            self._arrive_by(ends)
            self.now = ends
            for sequence in self.engine.end_step(self.now):
                self._ended(sequence)
            self._report()

    def _next_of(self, client: Client, at: float) -> None:
        length = next(self._left[id(client)], None)
        if length is not None:
            self._serial += 1
            self._coming.append((at, self._serial, client, length))

    def _arrive_by(self, until: float) -> None:
        for entry in sorted(each for each in self._coming if each[0] <= until):
            at, serial, client, length = entry
            self._coming.remove(entry)
            self.now = max(self.now, at)
            answered = Answered(length, at)
            client.requests.append(answered)
            ticket = str(serial)
            self._of[ticket] = client, answered
            key = client.key if self._fair else b""
            asked = AdmissionRequest(
                ServiceClass.INTERACTIVE,
                prompt_tokens=length.prompt,
                max_tokens=length.max_tokens,
                key=key,
                weight=client.weight,
            )
            outcome = self.core.arrive(ticket, asked, self.now)
            displaced = self.core.take_displaced()
            if isinstance(outcome, Queued):
                if outcome.predicted_start_ms is not None:
                    answered.predicted_s = outcome.predicted_start_ms / 1000
            else:
                displaced.insert(0, Decision(ticket, outcome))
            self._perform(displaced)

    def _perform(self, decisions: Iterable[Decision]) -> None:
        for each in decisions:
            _, answered = self._of[each.ticket]
            if not isinstance(each.outcome, Lease):
                answered.refused = True
                continue
            answered.slot_at = self.now
            length = answered.length
            answered.sequence = Sequence(int(each.ticket), length.prompt, length.output)
            self.engine.add(answered.sequence)
        assert self.engine.held <= self.engine.shape.slots

    def _ended(self, sequence: Sequence) -> None:
        client, answered = self._of[str(sequence.order)]
        self._perform(self.core.release(str(sequence.order), self.now, answered.length.output))
        self._next_of(client, self.now + client.pause_s)

    def _report(self) -> None:
        shape, steps = self.engine.shape, self.engine.steps
        from orch_sidecar.admission.types import StepTime

        step_time = StepTime(shape.t0_ms, shape.c_ms, shape.alpha, shape.slots)
        report = EngineReport(
            "e1",
            shape.slots,
            step_time=step_time if steps > 20 else None,
            prefill_tokens_per_s=shape.prefill_tokens_per_s,
        )
        self._perform(self.core.engine_reports(report, self.now))


def served(client: Client, since: float, until: float) -> int:
    """The tokens of a client's requests that ended within a time, as they count for its key."""
    return sum(
        each.tokens
        for each in client.requests
        if each.served_by(until) and not each.served_by(since)
    )


def lengths(
    seed: int, mean: int, count: int | None = None, max_tokens: int | None = None
) -> Iterator[Length]:
    """Requests of similar length: outputs between half and one and a half of the mean."""
    drawn = random.Random(seed)
    number = 0
    while count is None or number < count:
        number += 1
        yield Length(mean // 2, drawn.randint(mean // 2, 3 * mean // 2), max_tokens)


def jain(values: Iterable[float]) -> float:
    """Jain's index of fairness: 1 where all are equal, 1/n where one has everything."""
    found = list(values)
    return sum(found) ** 2 / (len(found) * sum(each * each for each in found))


def p95(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[max(0, -(-95 * len(ordered) // 100) - 1)]

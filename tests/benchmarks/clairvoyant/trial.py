"""Runs plans in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orch_sidecar.tools.simulate.run import Course, Record, Run
from orch_sidecar.tools.simulate.traffic import Arrival, BulkClients
from tests.benchmarks.clairvoyant.plan import Plan, Planned, Terms
from vllm_plugin.contracts.profile import ServiceClass


@dataclass(frozen=True, slots=True)
class Found:
    """A plan and its run. `late`: interactive requests that were served too late. `in_time`: how
    many of the others ended during the arrivals, which is their goodput."""

    plan: Plan
    course: Course
    late: frozenset[int]
    in_time: int

    @property
    def tokens(self) -> int:
        """Tokens generated during the arrivals."""
        return self.course.tokens

    def value(self, least_tokens: float) -> tuple[float, int]:
        """Returns what plans are compared by: first the tokens that are missing."""
        return (min(0.0, self.tokens - least_tokens), self.in_time)


@dataclass(frozen=True, slots=True)
class Stage:
    """The requests that plans are tried on, and the terms that they obey."""

    terms: Terms
    arrivals: Sequence[Arrival]
    seconds: float
    seed: int
    clients: BulkClients | None

    @property
    def interactive(self) -> dict[int, Arrival]:
        """The interactive requests by their numbers, in the order of their arrival."""
        return {
            number: each
            for number, each in enumerate(self.arrivals)
            if each.service_class is ServiceClass.INTERACTIVE
        }

    def sizes(self) -> dict[int, float]:
        """Returns the engine's seconds that each interactive request takes of a full batch."""
        shape = self.terms.shape
        token_s = shape.step_ms(shape.slots) / 1000 / shape.slots
        return {
            number: each.prompt / shape.prefill_tokens_per_s + each.output * token_s
            for number, each in self.interactive.items()
        }

    def run(self, plan: Plan) -> Found:
        """Runs a plan to the end of its last request."""
        course = Run(
            replace(self.terms.shape, by_priority=True),
            self.arrivals,
            self.seconds,
            lambda outcomes: Planned(plan, self.terms, self.arrivals, outcomes),
            self.seed,
            clients=filter(None, [self.clients]),
        ).to_the_end()
        served = {
            number: course.records[number]
            for number in self.interactive
            if course.records[number].refused is None
        }
        late = frozenset(number for number, each in served.items() if self._is_late(each))
        in_time = sum(
            (each.sequence.ended_at or 0.0) <= self.seconds
            for number, each in served.items()
            if number not in late
        )
        return Found(plan, course, late, in_time)

    def _is_late(self, record: Record) -> bool:
        first_s = record.sequence.first_token_at
        assert first_s is not None, "a run ends after its last request"
        return first_s - record.arrival.at > self.terms.slo_s

"""The clairvoyant policy: the rules that it obeys, and what it finds."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from orch_sidecar.tools.simulate.compare import (
    Figures,
    Policy,
    Scenario,
    capacity,
    course_of,
    figures,
    with_slo,
)
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.run import Course
from orch_sidecar.tools.simulate.traffic import Arrival, BulkClients, Replay, Workload
from orch_sidecar.tools.traces import read
from tests.benchmarks.clairvoyant import search
from vllm_plugin.contracts.profile import ServiceClass, load

INTERACTIVE, BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK
EXCERPT = Path(__file__).parents[3] / "traces" / "azure_llm_2023_conv.csv"
SLO_MS = 500.0
RULES = with_slo(load("cloud").admission, {"ttft": SLO_MS})
SHAPE = EngineShape(
    slots=8, t0_ms=12, c_ms=3.4, alpha=0.6, prefill_tokens_per_s=1000, long_prefill_tokens=64
)


@cache
def overloaded() -> tuple[Scenario, Course]:
    """Conversations at twice the capacity, beside bulk work, and the best plan for them."""
    replay = Replay(read(EXCERPT).window(0, 30).scaled(lengths=1 / 16))
    rate = 2 * capacity(SHAPE, replay, 1)
    clients = BulkClients(12, Workload(prompt=8, output=8))
    scenario = Scenario(SHAPE, replay, rate, replay.count / rate, 1, clients=clients)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "TRIES", 10)
        return scenario, search.best_course(scenario, RULES)


def of_policy(policy: Policy) -> Figures:
    return judged(course_of(policy, overloaded()[0], RULES))


def judged(course: Course) -> Figures:
    return figures(course, {INTERACTIVE: SLO_MS})


def test_more_requests_are_in_time_than_under_any_other_policy() -> None:
    best = judged(overloaded()[1]).classes[INTERACTIVE].goodput_per_s
    for policy in Policy:
        assert best > of_policy(policy).classes[INTERACTIVE].goodput_per_s


def test_engine_makes_nearly_the_tokens_that_it_makes_without_admission() -> None:
    assert judged(overloaded()[1]).tokens_per_s >= 0.97 * of_policy(Policy.DIRECT).tokens_per_s


def test_bulk_requests_get_their_guaranteed_share() -> None:
    assert judged(overloaded()[1]).classes[BULK].slot_share >= 0.95 * RULES.bulk_share


def test_served_requests_are_served_whole_and_within_the_slots() -> None:
    course = overloaded()[1]
    assert course.peak <= SHAPE.slots
    for record in course.records:
        assert (record.refused is None) == (record.sequence.made == record.sequence.output)


class Few(Workload):
    """A handful of requests, and time enough to end."""

    def arrivals(self, rate: float, seconds: float, seed: int) -> list[Arrival]:
        rows = ROWS[int(rate)]
        return [Arrival(at, INTERACTIVE, 1, output, output) for at, output in rows]


# The first one takes 2 s: if it does not wait, the three that come meanwhile are late.
LONG_FIRST = ((0.0, 200), (0.1, 10), (0.2, 10), (0.3, 10))
# All fit but one, and only if some wait for shorter ones and others for longer ones.
MIXED = ((0.0, 40), (0.05, 5), (0.1, 20), (0.12, 30), (0.6, 5), (0.7, 5))
ROWS = (LONG_FIRST, MIXED)


def alone(rows: int) -> Scenario:
    """One slot of an engine that takes 10 ms for each step."""
    shape = EngineShape(slots=1, t0_ms=10, c_ms=0, prefill_tokens_per_s=1e9)
    return Scenario(shape, Few(), float(rows), 60.0, 1)


def in_time(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(search, "TOKENS", 0.0)
    course = search.best_course(scenario, RULES)
    served = [record.completed for record in course.records if record.refused is None]
    return sum(1000 * (each.ttft_s or 0.0) <= SLO_MS for each in served if each)


@pytest.mark.parametrize("rows", range(len(ROWS)))
def test_schedule_of_a_handful_is_the_optimum(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    most = most_in_one_slot(list(ROWS[rows]))
    assert most == (4, 5)[rows]
    assert in_time(alone(rows), monkeypatch) == most


def most_in_one_slot(requests: list[tuple[float, int]], free_at: float = 0.0) -> int:
    """The optimum of one slot whose step takes 10 ms, by trying each next request."""
    best = 0
    for index, (at, output) in enumerate(requests):
        starts = max(free_at, at)
        if 1000 * (starts + 0.01 - at) <= SLO_MS:
            rest = requests[:index] + requests[index + 1 :]
            best = max(best, 1 + most_in_one_slot(rest, starts + output / 100))
    return best


def test_rules_without_an_slo_are_an_error() -> None:
    with pytest.raises(ValueError, match="needs an SLO: give --slo-ms or --slo-factor"):
        search.best_course(alone(0), load("offline").admission)

"""The clairvoyant policy: the rules that it obeys, and what it finds."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from orch_sidecar.tools.simulate.clairvoyant import search
from orch_sidecar.tools.simulate.compare import (
    Policy,
    Scenario,
    capacity,
    course_of,
    with_slo,
)
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.report import Figures, figures
from orch_sidecar.tools.simulate.run import Course
from orch_sidecar.tools.simulate.traffic import BulkClients, Replay
from orch_sidecar.tools.simulate.workload import Workload
from orch_sidecar.tools.traces import Trace, TracedRequest, read
from vllm_plugin.profile import ServiceClass, load

INTERACTIVE, BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK
EXCERPT = Path(__file__).parents[4] / "traces" / "azure_llm_2023_conv.csv"
SLO_MS = 500.0
RULES = with_slo(load("cloud").admission, SLO_MS)
SHAPE = EngineShape(
    slots=8, t0_ms=12, c_ms=3.4, alpha=0.6, prefill_tokens_per_s=1000, long_prefill_tokens=64
)


@cache
def overloaded() -> tuple[Scenario, Course]:
    """Conversations at twice the capacity, beside bulk work, and the best plan for them."""
    replay = Replay(read(EXCERPT).window(0, 60).scaled(lengths=1 / 16))
    rate = 2 * capacity(SHAPE, replay, 1)
    clients = BulkClients(12, Workload(prompt=8, output=8))
    scenario = Scenario(SHAPE, replay, rate, replay.count / rate, 1, clients=clients)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "TRIES", 20)
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
    assert judged(overloaded()[1]).classes[BULK].slot_share >= 0.95 * search.BULK_SHARE


def test_served_requests_are_served_whole_and_within_the_slots() -> None:
    course = overloaded()[1]
    assert course.peak <= SHAPE.slots
    for record in course.records:
        assert (record.refused is None) == (record.sequence.made == record.sequence.output)


def alone(*rows: tuple[float, int, int]) -> Scenario:
    """A few requests for one slot of an engine that takes 10 ms for each step."""
    shape = EngineShape(slots=1, t0_ms=10, c_ms=0, prefill_tokens_per_s=1e9)
    replay = Replay(Trace("few.csv", "0" * 64, tuple(TracedRequest(*row) for row in rows)))
    return Scenario(shape, replay, replay.rate, replay.count / replay.rate, 1)


def in_time(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(search, "TOKENS", 0.0)
    course = search.best_course(scenario, RULES)
    firsts = [
        (record.sequence.first_token_at or 0.0) - record.arrival.at
        for record in course.records
        if record.refused is None
    ]
    return sum(1000 * first <= SLO_MS for first in firsts)


def test_slot_is_kept_for_a_request_that_will_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one takes 2 s: if it does not wait, the three that come meanwhile are late."""
    scenario = alone((0.0, 1, 200), (0.1, 1, 10), (0.2, 1, 10), (0.3, 1, 10))
    assert in_time(scenario, monkeypatch) == 4


def test_order_is_neither_that_of_arrival_nor_that_of_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All six fit only if the fourth, of 0.3 s, is served before shorter ones that came later."""
    rows = ((0.0, 1, 40), (0.05, 1, 5), (0.1, 1, 20), (0.12, 1, 30), (0.6, 1, 5), (0.7, 1, 5))
    scenario = alone(*rows)
    assert in_time(scenario, monkeypatch) == most_in_one_slot([(at, out) for at, _, out in rows])


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
        search.best_course(alone((0.0, 1, 1)), load("offline").admission)

"""Whether requests came as their client states: Poisson arrivals, which no answer causes."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random

import pytest

from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.load import Load, contradictions
from orch_sidecar.tools.facts.tables.notes import Arrivals

# Returns when answers end, of requests that come at some times, and take about so long.
Ends = Callable[[Sequence[float], float, Random], list[float]]
ENDS: dict[str, Ends] = {
    "alike": lambda arrived, took, chance: [at + took for at in arrived],
    "exponential": lambda arrived, took, chance: [
        at + chance.expovariate(1 / took) for at in arrived
    ],
    "in batches": lambda arrived, took, chance: [(at // took + 2) * took for at in arrived],
    "one at a time": lambda arrived, took, chance: list(
        accumulate(arrived[1:], lambda end, at: max(end, at) + took / 8, initial=took)
    ),
}


def said(arrived_s: Sequence[float], ended_s: Sequence[float], *, exact: bool) -> list[str]:
    rate = (len(arrived_s) - 1) / (arrived_s[-1] - arrived_s[0])
    load = Load(arrivals=Arrivals.POISSON, rate_per_s=rate)
    requests = list(map(Interval, arrived_s, ended_s))
    return list(contradictions(load, [], requests, exact=exact))


@pytest.mark.parametrize("ends", ENDS)
def test_poisson_process_does_not_come_as_answers_end(ends: str) -> None:
    chance = Random(1)
    for _ in range(100):
        rate, requests = 10 ** chance.uniform(-2, 2), round(10 ** chance.uniform(0.5, 2.5))
        gaps = (chance.expovariate(rate) for _ in range(requests))
        arrived_s = [round(at, 6) for at in accumulate(gaps, initial=0.0)]
        took_s = 10 ** chance.uniform(-0.5, 2) / rate
        ended_s = [round(at, 6) for at in ENDS[ends](arrived_s, took_s, chance)]
        assert said(arrived_s, ended_s, exact=True) == []
        assert said(arrived_s, ended_s, exact=False) == []


@pytest.mark.parametrize("clients", [2, 5, 16, 64])
@pytest.mark.parametrize("ends", ["alike", "exponential"])
def test_closed_loop_comes_as_answers_end(clients: int, ends: str) -> None:
    """Whose clients take up to a fifth of the mean gap between two requests."""
    chance, arrived_s, ended_s = Random(2), list[float](), list[float]()
    free_s = [0.0] * clients
    for _ in range(clients + 40):
        arrived_s.append(heapq.heappop(free_s))
        ended_s += ENDS[ends](arrived_s[-1:], 3.0, chance)
        heapq.heappush(free_s, ended_s[-1] + chance.uniform(0, 3.0 / clients / 7))
    [found] = said(arrived_s, ended_s, exact=True)
    assert found.startswith("arrivals is poisson, ")
    assert "requests came as answers ended" in found

"""Whether requests came as their client states: by random gaps, which no answer ends."""

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


SHAPES = [None, 0.25, 0.5, 0.9, 1.1, 2.0]  # of the gaps; None: of a Poisson process


def said(
    shape: float | None, arrived_s: Sequence[float], ended_s: Sequence[float], *, exact: bool
) -> list[str]:
    rate = (len(arrived_s) - 1) / (arrived_s[-1] - arrived_s[0])
    arrivals = Arrivals.POISSON if shape is None else Arrivals.GAMMA
    load = Load(arrivals=arrivals, rate_per_s=rate, burstiness=shape)
    requests = list(map(Interval, arrived_s, ended_s))
    return list(contradictions(load, [], requests, exact=exact))


@pytest.mark.parametrize("ends", ENDS)
def test_requests_by_random_gaps_do_not_come_as_answers_end(ends: str) -> None:
    chance = Random(1)
    for number in range(120):
        shape = SHAPES[number % len(SHAPES)]
        rate, requests = 10 ** chance.uniform(-2, 2), round(10 ** chance.uniform(0.5, 2.5))
        own = 1.0 if shape is None else shape
        gaps = (chance.gammavariate(own, 1 / own / rate) for _ in range(requests))
        arrived_s = [round(at, 6) for at in accumulate(gaps, initial=0.0)]
        took_s = 10 ** chance.uniform(-0.5, 2) / rate
        ended_s = [round(at, 6) for at in ENDS[ends](arrived_s, took_s, chance)]
        assert said(shape, arrived_s, ended_s, exact=True) == []
        assert said(shape, arrived_s, ended_s, exact=False) == []


@pytest.mark.parametrize("clients", [2, 5, 16, 64])
@pytest.mark.parametrize("ends", ["alike", "exponential"])
@pytest.mark.parametrize("shape", [None, 0.5, 0.9, 1.1, 2.0])
def test_closed_loop_comes_as_answers_end(clients: int, ends: str, shape: float | None) -> None:
    """Whose clients take up to a fifth of the mean gap between two requests."""
    chance, arrived_s, ended_s = Random(2), list[float](), list[float]()
    free_s = [0.0] * clients
    # Gaps of another shape are often short, too.
    for _ in range(clients + (40 if shape is None else 160)):
        arrived_s.append(heapq.heappop(free_s))
        ended_s += ENDS[ends](arrived_s[-1:], 3.0, chance)
        heapq.heappush(free_s, ended_s[-1] + chance.uniform(0, 3.0 / clients / 7))
    found, *_ = said(shape, arrived_s, ended_s, exact=True)
    assert found.startswith(f"arrivals is {'poisson' if shape is None else 'gamma'}, ")
    assert "requests came as answers ended" in found

"""How requests arrived, by their times."""

from __future__ import annotations

import random

import pytest

from orch_sidecar.tools.facts.labels.figures import CompletedRequest
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.traces.verdict import LEAST, arrivals_of

ONLINE = Label.BATCHED_ONLINE


def of(times: list[tuple[float, float]]) -> list[CompletedRequest]:
    return [CompletedRequest(arrived_s, None, ended_s, 32, 16) for arrived_s, ended_s in times]


def closed(clients: int, seconds: float, think_s: float = 0.002) -> list[CompletedRequest]:
    """Clients with answers of different lengths, who each wait for their own until the end."""
    generator, found = random.Random(clients), []
    for client in range(clients):
        at_s = 0.001 * client
        while at_s < seconds:
            ended_s = at_s + generator.uniform(0.5, 1.5)
            found.append((at_s, ended_s))
            at_s = ended_s + think_s
    return of(found)


def poisson(rate: float, count: int = 200, lasts_s: float = 1.0) -> list[CompletedRequest]:
    generator, at_s, found = random.Random(rate), 0.0, []
    for _ in range(count):
        at_s += generator.expovariate(rate)
        found.append((at_s, at_s + lasts_s * generator.uniform(0.5, 1.5)))
    return of(found)


@pytest.mark.parametrize("clients", [2, 4, 16])
def test_clients_that_wait_for_their_answers_are_a_closed_loop(clients: int) -> None:
    assert arrivals_of(closed(clients, 20), ONLINE) is Arrivals.CLOSED_LOOP
    assert arrivals_of(closed(clients, 20), Label.OFFLINE) is Arrivals.CLOSED_LOOP


@pytest.mark.parametrize("rate", [0.5, 2.0, 8.0])
def test_requests_that_wait_for_nothing_are_an_open_loop(rate: float) -> None:
    assert arrivals_of(poisson(rate), ONLINE) is Arrivals.OPEN_LOOP
    assert arrivals_of(poisson(rate), Label.OFFLINE) is None, "that is no load of an offline run"


def test_clients_that_pause_are_no_closed_loop() -> None:
    assert arrivals_of(closed(4, 20, think_s=1.0), ONLINE) is Arrivals.OPEN_LOOP


def test_all_within_a_tenth_of_the_window_came_at_once() -> None:
    together = of([(0.01 * number, 10.0 + number) for number in range(40)])
    assert arrivals_of(together, Label.OFFLINE) is Arrivals.AT_ONCE


def test_few_requests_show_nothing() -> None:
    assert arrivals_of(closed(2, 20)[: LEAST - 1], ONLINE) is None
    assert arrivals_of(closed(16, 0.6), ONLINE) is None


def test_single_stream_is_its_label() -> None:
    assert arrivals_of(closed(1, 40), Label.SINGLE_STREAM) is None

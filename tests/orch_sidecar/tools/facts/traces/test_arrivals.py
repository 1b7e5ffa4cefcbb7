"""How requests arrived, by their times."""

from __future__ import annotations

import random

import pytest

from orch_sidecar.tools.facts.labels.figures import CompletedRequest
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.traces.verdict import arrivals_of


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


@pytest.mark.parametrize(
    ("requests", "online", "offline"),
    [
        # Clients that wait for their answers, and those that pause after them.
        *((closed(clients, 20), Arrivals.CLOSED_LOOP, Arrivals.CLOSED_LOOP)
          for clients in (2, 4, 16)),
        (closed(4, 20, think_s=1.0), Arrivals.OPEN_LOOP, None),
        # Requests that wait for nothing: that is no load of an offline run.
        *((poisson(rate), Arrivals.OPEN_LOOP, None) for rate in (0.5, 2.0, 8.0)),
        # All within a tenth of the window.
        (of([(0.01 * number, 10.0 + number) for number in range(40)]),
         Arrivals.AT_ONCE, Arrivals.AT_ONCE),
        # A few requests show nothing, nor do a few that follow others.
        (closed(2, 20)[:9], None, None),
        (closed(16, 0.6), None, None),
    ],
)  # fmt: skip
def test_times_show_how_requests_arrived(
    requests: list[CompletedRequest], online: Arrivals | None, offline: Arrivals | None
) -> None:
    assert arrivals_of(requests, Label.BATCHED_ONLINE) is online
    assert arrivals_of(requests, Label.OFFLINE) is offline
    assert arrivals_of(requests, Label.SINGLE_STREAM) is None, "its label implies it"

"""Predictions in virtual time: starts come true.

The conversation trace at the capacity and at twice as much, beside 24 clients that always have
bulk work, for several of its waves.

What clients that watch the queue are shown: each queued request is looked at twice a second, as by
`proxy.queue_events`, and places fall.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from orch_sidecar.admission.prediction.forecast import Place
from orch_sidecar.admission.types import Decision, Lease
from orch_sidecar.tools.simulate.compare import (
    Policy,
    Scenario,
    capacity,
    course_of,
    prediction_errors,
    unloaded_ttft_p95_ms,
    with_slo,
)
from orch_sidecar.tools.simulate.engine import Engine, EngineShape
from orch_sidecar.tools.simulate.fronts import Admitted, Outcomes, Sight
from orch_sidecar.tools.simulate.run import Record, Run
from orch_sidecar.tools.simulate.traffic import BulkClients, Replay, Workload
from orch_sidecar.tools.traces import read
from vllm_plugin.contracts.profile import AdmissionRules, ServiceClass, load

CLOUD = load("cloud").admission
SECONDS = 300.0
SHAPES = {
    "faster": EngineShape(16, 12, 3.4, 0.6, 1000, step_tokens=256, long_prefill_tokens=64),
    "slower": EngineShape(16, 33, 2.0, 1.0, 540, step_tokens=256, long_prefill_tokens=64),
}


@cache
def records(name: str, times: float) -> list[Record]:
    shape = SHAPES[name]
    trace = Replay(read(Path("tests/traces/azure_llm_2023_conv.csv")).scaled(lengths=1 / 16))
    rules = with_slo(CLOUD, {"ttft": 3 * unloaded_ttft_p95_ms(shape, trace, 1)})
    clients = BulkClients(24, Workload(prompt=48, output=96, bulk_factor=1))
    rate = times * capacity(shape, trace, 1)
    scenario = Scenario(shape, trace, rate, SECONDS, seed=1, clients=clients)
    return course_of(Policy.POLICY, scenario, rules).records


def errors_of(service_class: ServiceClass, name: str, times: float) -> list[float]:
    return prediction_errors(
        [
            each
            for each in records(name, times)
            if each.arrival.service_class is service_class
            and each.started_at is not None
            and each.started_at < SECONDS  # later there are no waves
        ]
    )


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("times", "off_by", "bias"), [(0.5, 0.3, 0.1), (2.0, 0.5, 0.22)])
def test_bulk_requests_start_neither_earlier_nor_later_than_predicted(
    name: str, times: float, off_by: float, bias: float
) -> None:
    """Beside too many interactive requests a wait is known to a half only, but without bias."""
    errors = errors_of(ServiceClass.BULK, name, times)
    assert len(errors) > 50
    assert median(map(abs, errors)) <= off_by
    assert abs(median(errors)) <= bias


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("times", [0.5, 1.0, 2.0])
def test_interactive_requests_start_as_predicted(name: str, times: float) -> None:
    errors = errors_of(ServiceClass.INTERACTIVE, name, times)
    assert len(errors) > 200
    assert median(map(abs, errors)) <= 0.2
    assert abs(median(errors)) <= 0.07


WATCHED_SHAPE = EngineShape(16, 12, 3.4, 0.6, 4000, step_tokens=512, long_prefill_tokens=256)
WATCHED_S = 120.0
LOOK_EVERY_S = 0.5
# A shorter wait is a step or two.
LEAST_S = 0.1


class Watched(Admitted):
    """The admission, and what each queued request was shown, with the time of it."""

    def __init__(self, rules: AdmissionRules, outcomes: Outcomes) -> None:
        super().__init__(rules, Sight(), outcomes, seed=1)
        self.shown: dict[str, list[tuple[float, Place]]] = defaultdict(list)
        self.started: dict[str, float] = {}
        self._look_at = 0.0

    def report(self, engine: Engine, now: float) -> None:
        super().report(engine, now)
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            for ticket in self._controller.queues.tickets():
                place = self._controller.place(ticket, now)
                if place is not None:
                    self.shown[ticket].append((now, place))

    def _perform(self, decisions: Iterable[Decision], now: float) -> None:
        found = list(decisions)
        for each in found:
            if isinstance(each.outcome, Lease):
                self.started[each.ticket] = now
        super()._perform(found, now)

    def errors(self) -> list[float]:
        """|predicted - actual| / actual, of all that was shown to requests that started while
        others arrived: that the traffic ends nobody could know."""
        return [
            abs(place.starts_at - started) / (started - at)
            for ticket, started in self.started.items()
            if started < WATCHED_S
            for at, place in self.shown[ticket]
            if place.starts_at is not None and started - at > LEAST_S
        ]


@cache
def watched(workload: Workload, load_factor: float) -> Watched:
    """A run at a multiple of the capacity."""
    made: list[Watched] = []

    def front(outcomes: Outcomes) -> Watched:
        made.append(Watched(CLOUD, outcomes))
        return made[0]

    rate = load_factor * capacity(WATCHED_SHAPE, workload, 1)
    Run(WATCHED_SHAPE, workload.arrivals(rate, WATCHED_S, 1), WATCHED_S, front, seed=1).to_the_end()
    return made[0]


MIXED, EVEN = Workload(), Workload(bulk_share=0.5)
# Interactive requests alone, with limits on their lengths and without.
CHAT, UNLIMITED = Workload(bulk_share=0.0), Workload(bulk_share=0.0, max_tokens_known=False)
# Where bulk requests wait for what the waves of interactive ones leave.
WAVES = Workload(bulk_share=0.3)


@pytest.mark.parametrize(
    ("workload", "load_factor", "off_by"),
    [
        (EVEN, 1.1, 0.2),
        (CHAT, 1.1, 0.05),
        pytest.param(MIXED, 1.1, 0.2, marks=pytest.mark.long),
        pytest.param(MIXED, 1.5, 0.2, marks=pytest.mark.long),
        pytest.param(CHAT, 1.5, 0.05, marks=pytest.mark.long),
        pytest.param(UNLIMITED, 1.1, 0.2, marks=pytest.mark.long),
        pytest.param(WAVES, 1.5, 0.2, marks=pytest.mark.long),
        pytest.param(WAVES, 1.1, 0.2, marks=pytest.mark.long),
    ],
)
def test_what_is_shown_is_off_by_a_fifth_at_most_in_the_median(
    workload: Workload, load_factor: float, off_by: float
) -> None:
    errors = watched(workload, load_factor).errors()
    assert len(errors) > 700
    assert median(errors) <= off_by


@pytest.mark.parametrize(
    ("workload", "load_factor"),
    [(CHAT, 1.1), pytest.param(UNLIMITED, 1.5, marks=pytest.mark.long)],
)
def test_positions_fall_within_a_class_and_key(workload: Workload, load_factor: float) -> None:
    """Bulk ones may rise by the interactive ones that come and go before them: a client is shown
    the least so far."""
    found = watched(workload, load_factor)
    several = [shown for shown in found.shown.values() if len(shown) > 1]
    assert len(several) > 200
    for shown in several:
        positions = [place.position for _, place in shown]
        assert positions == sorted(positions, reverse=True)

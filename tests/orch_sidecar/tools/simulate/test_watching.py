"""What clients that watch the queue are shown, in virtual time: places fall, starts come true.

Each queued request is looked at twice a second, as by `proxy.queue_events`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from statistics import median

import pytest

from orch_sidecar.admission.prediction.forecast import Place
from orch_sidecar.admission.types import Decision, Lease
from orch_sidecar.tools.simulate.compare import capacity
from orch_sidecar.tools.simulate.engine import Engine, EngineShape
from orch_sidecar.tools.simulate.fronts import Admitted, Outcomes, Sight
from orch_sidecar.tools.simulate.run import Run
from orch_sidecar.tools.simulate.traffic import Arrival, Workload
from vllm_plugin.contracts.profile import AdmissionRules, load

SHAPE = EngineShape(16, 12, 3.4, 0.6, 4000, step_tokens=512, long_prefill_tokens=256)
SECONDS = 120.0
EVERY_S = 0.5
# A shorter wait is a step or two.
LEAST_S = 0.1


class Watched(Admitted):
    """The admission, and what each queued request was shown, with the time of it."""

    def __init__(self, rules: AdmissionRules, outcomes: Outcomes) -> None:
        super().__init__(rules, Sight(), outcomes, seed=1)
        self.shown: dict[str, list[tuple[float, Place]]] = defaultdict(list)
        self.started: dict[str, float] = {}
        self._look_at = 0.0
        self._now = 0.0

    def arrive(self, number: int, arrival: Arrival, now: float) -> None:
        self._now = now
        super().arrive(number, arrival, now)

    def ended(self, number: int, arrival: Arrival, now: float) -> None:
        self._now = now
        super().ended(number, arrival, now)

    def tick(self, now: float) -> None:
        self._now = now
        super().tick(now)

    def report(self, engine: Engine, now: float) -> None:
        self._now = now
        super().report(engine, now)
        if now >= self._look_at:
            self._look_at = now + EVERY_S
            for ticket in self._controller.queues.tickets():
                place = self._controller.place(ticket, now)
                if place is not None:
                    self.shown[ticket].append((now, place))

    def _perform(self, decisions: Iterable[Decision], now: float) -> None:
        found = list(decisions)
        for each in found:
            if isinstance(each.outcome, Lease):
                self.started[each.ticket] = self._now
        super()._perform(found, now)

    def errors(self) -> list[float]:
        """|predicted - actual| / actual, of all that was shown to requests that started while
        others arrived: that the traffic ends nobody could know."""
        return [
            abs(place.starts_at - started) / (started - at)
            for ticket, started in self.started.items()
            if started < SECONDS
            for at, place in self.shown[ticket]
            if place.starts_at is not None and started - at > LEAST_S
        ]


@cache
def watched(workload: Workload, load_factor: float) -> Watched:
    """A run at a multiple of the capacity."""
    made: list[Watched] = []

    def front(outcomes: Outcomes) -> Watched:
        made.append(Watched(load("cloud").admission, outcomes))
        return made[0]

    rate = load_factor * capacity(SHAPE, workload, 1)
    Run(SHAPE, workload.arrivals(rate, SECONDS, 1), SECONDS, front, seed=1).to_the_end()
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

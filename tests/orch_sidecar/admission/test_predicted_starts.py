"""Predicted starts say what each constraint will say, and come true in virtual time.

What the next request waits for, in words.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from statistics import mean, median

import pytest

from orch_sidecar.admission import refusals
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease, Queued
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.pools.status import status_of
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.fronts import Admitted, Outcomes, Sight
from orch_sidecar.tools.simulate.run import Record, Run
from orch_sidecar.tools.simulate.traffic import Arrival
from tests.orch_sidecar.admission.constraints.test_conformance import LongPrompts, core_with, long
from tests.orch_sidecar.admission.examples import (
    INTERACTIVE,
    class_rules,
    core_of,
    fill,
    interactive,
    queue,
    rules,
)

SHAPE = EngineShape(slots=16)
SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """A mixture: requests per second, the share of long prompts, and that of each adapter."""

    per_s: float
    long: float = 0.0
    adapters: tuple[float, ...] = ()
    max_loras: int = 0
    kv_tokens: int | None = None

    def arrivals(self) -> list[Arrival]:
        chance, at, found = random.Random(1), 0.0, []
        while (at := at + chance.expovariate(self.per_s)) < SECONDS:
            prompt = chance.randint(3000, 6000) if chance.random() < self.long else 200
            output = max(1, int(chance.lognormvariate(4.5, 0.5)))
            found.append(Arrival(at, INTERACTIVE, prompt, output, output))
        return found

    def adapter_of(self, number: int) -> str | None:
        drawn = random.Random(number).random()
        for name, share in zip("abc", self.adapters, strict=False):
            drawn -= share
            if drawn < 0:
                return name
        return None

    def records(self) -> list[Record]:
        """Returns what became of each request."""
        lasting = class_rules(queue_capacity=4096, max_wait_s=3600.0)

        def front(outcomes: Outcomes) -> Admitted:
            admitted = Admitted(rules(lasting, lasting), Sight(), outcomes, 1)
            core = admitted._controller
            arrive, reports = core.arrive, core.engine_reports

            def of_adapter(
                ticket: str, request: AdmissionRequest, now: float
            ) -> Lease | Refusal | Queued:
                return arrive(
                    ticket, replace(request, adapter=self.adapter_of(request.identity)), now
                )

            def with_loras(report: EngineReport, now: float) -> object:
                return reports(report._replace(max_loras=self.max_loras), now)

            core.arrive, core.engine_reports = of_adapter, with_loras  # type: ignore[method-assign, assignment]
            return admitted

        shape = replace(SHAPE, kv_tokens=self.kv_tokens)
        return Run(shape, self.arrivals(), SECONDS, front).to_the_end().records


@pytest.mark.parametrize(
    ("traffic", "bias", "error"),
    [
        (Traffic(14.0), 0.05, 0.05),
        (Traffic(11.0, adapters=(0.3, 0.15, 0.05), max_loras=1), 0.25, 0.3),
        (Traffic(12.0, adapters=(0.4, 0.2, 0.1), max_loras=2), 0.4, 0.2),
        (Traffic(9.0, long=0.15, kv_tokens=20_000), 0.1, 0.12),
    ],
    ids=["slots", "one adapter", "two adapters", "long prompts"],
)
def test_requests_start_when_they_were_told(traffic: Traffic, bias: float, error: float) -> None:
    """`bias`: of the mean wait; `error`: the median of those of all that waited."""
    waits = [
        (each.predicted_s, each.started_at - each.arrival.at)
        for each in traffic.records()
        if each.started_at is not None and each.predicted_s is not None
    ]
    waits = [(predicted, waited) for predicted, waited in waits if waited > 0.1]
    assert len(waits) > 200
    predicted_s, waited_s = (mean(each[side] for each in waits) for side in (0, 1))
    errors = [abs(predicted - waited) / waited for predicted, waited in waits]
    assert abs(predicted_s / waited_s - 1) <= bias
    assert median(errors) <= error


def test_start_of_a_request_in_line_for_a_slot_is_unknown_if_something_else_will_block_it() -> None:
    core = core_with(LongPrompts(), slots=2)
    core.arrive("long 1", long(), 0.0)
    core.arrive("short 1", interactive(max_tokens=10), 0.0)
    promised = [
        each.predicted_start_ms
        for name, request in (("short 2", interactive(max_tokens=10)), ("long 2", long()))
        for each in queue(core, request, name)
    ]
    assert core.blocked_by is core.constraints.slots
    assert promised == [120, None]
    shown = core.forecaster.starts(INTERACTIVE, core.blocked_by, 0.0)
    assert [start_s for _, start_s in shown] == [pytest.approx(0.12, abs=0.001), None]


def test_taken_slots_are_counted() -> None:
    core = core_of(2)
    assert status_of(core, 0.0).waited_for is None
    fill(core, interactive(), "a", "b")
    queue(core, interactive(), "c")
    assert status_of(core, 0.0).waited_for == "a slot: all 2 are in use"


def test_slots_that_do_not_suffice_are_counted() -> None:
    core = core_of(4)
    fill(core, interactive(3), "a")
    queue(core, interactive(2), "b")
    text = status_of(core, 0.0).waited_for
    assert text is not None
    assert text.startswith("more slots: 1 of 4 are free")


def test_an_engine_that_is_away_is_named_with_its_reason() -> None:
    core = core_of(1)
    fill(core, interactive(), "a")
    queue(core, interactive(), "b")
    core.engine_unavailable(refusals.RESTARTED, 0.0)
    assert status_of(core, 0.0).waited_for == f"the engine: {refusals.RESTARTED.message}"


def test_every_constraint_has_words() -> None:
    core = core_of(1)
    for each in core.constraints.all:
        text = status_of(core, 0.0)._replace(blocked_by=each).waited_for
        assert text
        assert text == text.strip()

"""Runs: what is counted, and what always holds."""

from __future__ import annotations

from functools import cache

import pytest

from orch_sidecar.tools.simulate.compare import (
    Policy,
    Scenario,
    capacity,
    compare,
    course_of,
    figures,
    with_slo,
)
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.fronts import Admitted, Sight
from orch_sidecar.tools.simulate.run import Course, Run
from orch_sidecar.tools.simulate.traffic import Arrival, Workload
from vllm_plugin.contracts.profile import ServiceClass, load

SHAPE = EngineShape(slots=8, long_prefill_tokens=256)
WORKLOAD = Workload()
CLOUD = load("cloud").admission
RULES = with_slo(CLOUD, {"ttft": 200.0})
CAN = capacity(SHAPE, WORKLOAD, 1)


def scenario(load_factor: float, seconds: float = 60.0) -> Scenario:
    return Scenario(SHAPE, WORKLOAD, load_factor * CAN, seconds, seed=1)


@cache
def course(policy: Policy, load_factor: float) -> Course:
    return course_of(policy, scenario(load_factor), RULES)


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("load_factor", [0.8, 2.0])
def test_each_request_is_served_whole_or_refused(policy: Policy, load_factor: float) -> None:
    records = course(policy, load_factor).records
    assert len(records) == len(scenario(load_factor).arrivals())
    for record in records:
        served = record.sequence.ended_at is not None
        assert served == (record.refused is None)
        assert not served or record.sequence.made == record.sequence.output


@pytest.mark.parametrize("policy", [Policy.POLICY, Policy.FIFO])
def test_admission_never_gives_the_engine_more_than_it_has_slots(policy: Policy) -> None:
    found = figures(course(policy, 2.0), {})
    assert found.peak == SHAPE.slots
    assert found.occupancy > 0.85


def test_without_admission_the_engine_queues() -> None:
    found = figures(course(Policy.DIRECT, 2.0), {})
    assert found.peak > 3 * SHAPE.slots
    assert found.occupancy > 0.95


def test_engine_with_room_queues_no_request() -> None:
    found = figures(course_of(Policy.POLICY, scenario(0.2), CLOUD), {})
    for each in (ServiceClass.INTERACTIVE, ServiceClass.BULK):
        of_class = found.classes[each]
        assert of_class.refused == {}
        assert of_class.wait_ms is not None
        assert of_class.wait_ms.p50 < 20  # a step, and a bulk prompt before
    assert found.classes[ServiceClass.INTERACTIVE].served > 0


def test_same_seed_gives_the_same_figures() -> None:
    first, second = (compare(scenario(1.5, 30.0), RULES, list(Policy)) for _ in range(2))
    assert first == second


def test_profile_without_interactive_requests_serves_all_in_order() -> None:
    course = course_of(Policy.POLICY, scenario(2.0), load("offline").admission)
    started = [record.started_at for record in course.records if record.started_at is not None]
    assert started == sorted(started)


def test_reclaimed_requests_are_served_whole_in_the_end() -> None:
    """Interactive requests that come after bulk ones have taken all slots."""
    shape = EngineShape(slots=4, c_ms=1.0, long_prefill_tokens=256)
    bulk = [Arrival(0.0, ServiceClass.BULK, 16, 400, 400) for _ in range(8)]
    interactive = [Arrival(1 + n, ServiceClass.INTERACTIVE, 16, 200, 200) for n in range(3)]
    run = Run(shape, [*bulk, *interactive], 10.0, lambda out: Admitted(RULES, Sight(), out, 1))
    course = run.to_the_end()
    assert sum(record.reclaimed for record in course.records) > 0
    assert course.peak <= shape.slots
    for record in course.records:
        assert record.sequence.made == record.sequence.output or record.refused is not None

"""How a policy by demand could fail, and that it does not: each in virtual time.

Random events: the same ones lead to the same decisions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from orch_sidecar.admission.constraints.rules import AdmissionConstraints
from orch_sidecar.admission.controller import AdmissionController
from tests.orch_sidecar.admission.examples import BULK, INTERACTIVE, class_rules, core_of, rules
from tests.orch_sidecar.admission.play import STEP_TIME, Coming, Played, bulk_backlog, play, poisson
from tests.orch_sidecar.admission.random_log import RandomLog
from vllm_plugin.contracts.profile import AdmissionRules

SLOTS = 16


def shared(**changes: object) -> AdmissionRules:
    """The rules of the cloud profile, with a first token within half a second."""
    of_bulk = class_rules(queue_capacity=10_000, max_wait_s=86_400.0)
    values = {"bulk_share": 0.1, "aging_s": None} | changes
    return rules(class_rules(ttft_p95_ms=500.0), of_bulk, **values)


def course(
    coming: list[Coming], until: float, slots: int = SLOTS, of_rules: AdmissionRules | None = None
) -> Played:
    return play(core_of(slots, of_rules or shared(), step_time=STEP_TIME), coming, until)


@pytest.mark.parametrize("period_s", [1.0, 5.0, 30.0])
def test_a_load_that_alternates_is_followed_without_idle_slots(period_s: float) -> None:
    """Half of the time interactive requests ask for 12 of 16 slots, beside a backlog of bulk."""
    coming = bulk_backlog(1000, 4.0)
    at = 0.0
    while at < 240:
        coming += poisson(12.0, 1.0, at, at + period_s, seed=int(at))
        at += 2 * period_s
    played = course(coming, 240.0)
    both = sum(played.share(each, 20.0, 240.0) for each in (INTERACTIVE, BULK))
    assert both >= 0.96, "work-conserving but for the deviation"
    assert played.served(INTERACTIVE) >= 0.45


def test_people_are_not_refused_while_bulk_has_the_slots() -> None:
    """They ask for three quarters of the slots; refusing them does not hide that."""
    coming = bulk_backlog(1000, 10.0) + poisson(12.0, 1.0, 0.0, 300.0)
    played = course(coming, 300.0)
    late = [each for each in played.of(INTERACTIVE) if each.waited_s > 0.5]
    assert late == []
    assert played.served(INTERACTIVE) >= 0.8
    assert played.share(BULK, 60.0, 300.0) >= 0.1


@pytest.mark.parametrize(("slots", "service_s"), [(16, 5.0), (16, 30.0), (4, 5.0)])
def test_bulk_has_its_share_in_each_minute_under_any_load(slots: int, service_s: float) -> None:
    """Interactive requests ask for twice the slots. So each bulk request ends.

    In the first two minutes bulk requests pay for the slots that they had before.
    """
    coming = bulk_backlog(300, service_s) + poisson(slots / 2, 4.0, 0.0, 300.0)
    played = course(coming, 300.0, slots)
    for begin in range(120, 240, 20):
        granularity = service_s / (60 * slots)
        assert played.share(BULK, begin, begin + 60) >= 0.1 - granularity
    if slots == SLOTS:  # with few, the 3 % of idle slots last for no queue of interactive ones
        assert played.share(BULK, 120.0, 300.0) == pytest.approx(0.1, abs=0.035)
        assert played.share(INTERACTIVE, 100.0, 300.0) >= 0.8


def test_deadlines_of_a_millisecond_take_no_slot_from_bulk() -> None:
    gaming = poisson(50.0, 1.0, 0.0, 60.0, deadline_ms=1.0)
    played = course(bulk_backlog(1000, 4.0) + gaming, 60.0)
    assert played.share(BULK, 20.0, 60.0) >= 0.95


def test_retries_before_their_time_ask_for_nothing_more() -> None:
    """While bulk has all slots, from 20 s to 40 s, four clients repeat a request each 50 ms."""
    request = poisson(1.0, 5.0, 0.0, 10.0)[0].request
    retries = [
        Coming(22.0 + tick / 20, replace(request, identity=client + 1), 5.0)
        for client in range(4)
        for tick in range(340)
    ]
    played = course(bulk_backlog(1000, 20.0) + retries, 60.0)
    assert played.served(INTERACTIVE) <= 0.01
    assert played.share(BULK, 40.0, 60.0) >= 1 - 7 / SLOTS
    as_new = [replace(each, request=replace(each.request, identity=0)) for each in retries]
    flooded = course(bulk_backlog(1000, 20.0) + as_new, 60.0)
    assert flooded.share(BULK, 40.0, 60.0) < played.share(BULK, 40.0, 60.0)


@pytest.mark.parametrize("wrong", [1 / 3, 3])
def test_wrong_expectations_of_length_cost_neither_class_its_slots(wrong: float) -> None:
    """The tokens that requests announce are three times too many, or a third."""
    asked = {"max_tokens": int(100 * wrong)}
    coming = bulk_backlog(2000, 4.0) + poisson(6.0, 1.0, 0.0, 150.0, **asked)
    right = bulk_backlog(2000, 4.0) + poisson(6.0, 1.0, 0.0, 150.0)
    played, expected = (course(each, 150.0) for each in (coming, right))
    both = sum(played.share(each, 60.0, 150.0) for each in (INTERACTIVE, BULK))
    assert both >= 0.96
    assert played.served(INTERACTIVE) >= expected.served(INTERACTIVE) - 0.1


def test_idle_slots_cost_no_more_than_their_share() -> None:
    """A light load, for which a slot or two stay free."""
    coming = bulk_backlog(3000, 4.0) + poisson(2.0, 1.0, 0.0, 300.0)
    played = course(coming, 300.0)
    assert 0 < played.idle_slot_s <= 0.035 * SLOTS * 300


def test_one_slot_serves_interactive_requests_first_and_bulk_ones_in_the_end() -> None:
    coming = bulk_backlog(20, 3.0) + poisson(0.5, 1.0, 0.0, 300.0)
    patient = rules(
        class_rules(), class_rules(queue_capacity=100, max_wait_s=86_400.0), bulk_share=0.1
    )
    played = course(coming, 300.0, 1, patient)
    assert played.served(INTERACTIVE) >= 0.85
    assert played.share(BULK, 0.0, 300.0) >= 0.1


def test_decisions_depend_on_no_hash_and_no_address() -> None:
    command = [sys.executable, "-m", "tests.orch_sidecar.admission.random_log", "1", "2"]
    first, second = (
        subprocess.run(
            command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    )
    assert len(first.splitlines()) > 3000
    assert first == second


def test_every_constraint_blocks_some_of_the_requests() -> None:
    lines: list[str] = []
    for seed in range(12):
        RandomLog(seed, lines.append).run(300)
    constraints: AdmissionConstraints = AdmissionController(rules()).constraints
    assert {word for line in lines for word in line.split()[1:2]} >= set(constraints.reasons)

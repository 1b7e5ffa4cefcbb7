"""What holds for every constraint: those of an engine, and one made up here for each scope."""

from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any, ClassVar

import pytest

from orch_sidecar.admission.constraints.constraint import (
    UNLIMITED,
    Ahead,
    Constraint,
    Occupancy,
    Scope,
)
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import AdmissionRequest, Lease, Queued
from orch_sidecar.api.refusal import Refusal
from orch_sidecar.pools.status import status_of
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.fronts import Admitted, Outcomes, Sight
from orch_sidecar.tools.simulate.run import Run
from orch_sidecar.tools.simulate.traffic import Workload
from tests.orch_sidecar.admission.examples import (
    BULK,
    INTERACTIVE,
    STEP_TIME,
    bulk,
    class_rules,
    core_of,
    interactive,
    queue,
    report,
    rules,
)
from tests.orch_sidecar.admission.play import Coming, play
from vllm_plugin.contracts.profile import ServiceClass, load

LONG = 4000
SLOTS = 64
# Of an engine whose own constraints block nothing here.
FAST: dict[str, Any] = {"step_time": STEP_TIME, "prefill_tokens_per_s": 1e7}


class AtMost(Constraint):
    """At most `most` requests of some kind at once; `is_used_by` says of which."""

    def __init__(self, most: int = 1) -> None:
        self.most = most
        self.running = 0

    def blocks(self, request: AdmissionRequest, occupancy: Occupancy, now: float) -> bool:
        return self.is_used_by(request) and self.running >= self.most

    def granted(self, lease: Lease, request: AdmissionRequest, now: float) -> None:
        self.running += self.is_used_by(request)

    def ended(self, request: AdmissionRequest, now: float) -> None:
        self.running -= self.is_used_by(request)

    def begin_epoch(self) -> None:
        self.running = 0

    def text(self) -> str:
        return "one of its kind to end"


class LongPrompts(AtMost):
    """At most one prompt of more than LONG tokens at once; others pass it."""

    reason: ClassVar[str] = "long_prompt"
    scope: ClassVar[Scope] = Scope.REQUEST

    def is_used_by(self, request: AdmissionRequest) -> bool:
        return request.prompt_tokens > LONG


class FewInteractive(AtMost):
    """At most three interactive requests at once; bulk ones pass."""

    reason: ClassVar[str] = "few_interactive"
    scope: ClassVar[Scope] = Scope.CLASS
    wastes_slots: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(3)

    def is_used_by(self, request: AdmissionRequest) -> bool:
        return request.service_class is INTERACTIVE


class Nights(Constraint):
    """Nothing begins in every second minute. Its end is no event."""

    reason: ClassVar[str] = "night"
    scope: ClassVar[Scope] = Scope.ENGINE
    absolute: ClassVar[bool] = True
    wastes_slots: ClassVar[bool] = True

    def room(self, service_class: ServiceClass, occupancy: Occupancy, now: float) -> int:
        return 0 if now % 120 >= 60 else UNLIMITED

    def clears_at(self, request: AdmissionRequest, now: float) -> float | None:
        return now - now % 120 + 120

    def starts_in_s(self, request: AdmissionRequest, ahead: Ahead, now: float) -> float | None:
        return 120 - now % 120 if now % 120 >= 60 else 0.0

    def text(self) -> str:
        return "the day"


class Colours(Constraint):
    """Requests of one colour (the number of their prompt tokens) at once: as adapters, of which an
    engine has room for one. Those without a colour (0) pass."""

    reason: ClassVar[str] = "colour"
    scope: ClassVar[Scope] = Scope.REQUEST

    def __init__(self) -> None:
        self.running: dict[int, int] = {}

    def is_used_by(self, request: AdmissionRequest) -> bool:
        return request.prompt_tokens > 0

    def group(self, request: AdmissionRequest) -> Hashable:
        return request.prompt_tokens

    def blocks(self, request: AdmissionRequest, occupancy: Occupancy, now: float) -> bool:
        colour = request.prompt_tokens
        return bool(colour and self.running and colour not in self.running)

    def granted(self, lease: Lease, request: AdmissionRequest, now: float) -> None:
        if colour := request.prompt_tokens:
            self.running[colour] = self.running.get(colour, 0) + 1

    def ended(self, request: AdmissionRequest, now: float) -> None:
        if colour := request.prompt_tokens:
            self.running[colour] -= 1
            if not self.running[colour]:
                del self.running[colour]

    def begin_epoch(self) -> None:
        self.running.clear()

    def text(self) -> str:
        return "its colour"


MADE_UP = (LongPrompts, FewInteractive, Nights, Colours)


def core_with(*more: Constraint, slots: int = SLOTS) -> AdmissionController:
    core = AdmissionController(rules(), random.Random(1), more)
    core.engine_reports(report(slots, **FAST), 0.0)
    return core


def long(of_class: ServiceClass = INTERACTIVE) -> AdmissionRequest:
    return AdmissionRequest(of_class, 1, LONG + 1, 100)


# One prompt of more than 4 000 tokens at once, of 64 slots


def test_long_prompt_keeps_nobody_waiting_but_other_long_ones() -> None:
    core = core_with(LongPrompts())
    assert isinstance(core.arrive("long 1", long(), 0.0), Lease)
    [second] = queue(core, long(), "long 2", at=0.1)
    assert second.predicted_start_ms != 0
    assert core.blocked_by is not None
    assert core.blocked_by.reason == "long_prompt"
    for number in range(20):
        assert isinstance(core.arrive(f"short {number}", interactive(), 0.2), Lease)
        assert isinstance(core.arrive(f"bulk {number}", bulk(), 0.2), Lease)
    [third] = queue(core, long(BULK), "long 3", at=0.3)
    assert third.predicted_start_ms != 0
    free = status_of(core, 0.3)
    assert (free.interactive.free, free.bulk.free) == (SLOTS - 41, SLOTS - 41)
    assert [each.ticket for each in core.release("long 1", 1.0, 100)] == ["long 2"]
    assert [each.ticket for each in core.release("long 2", 2.0, 100)] == ["long 3"]


def test_long_prompt_is_first_when_what_it_waits_for_is_free() -> None:
    """All slots are taken by others: it gets the next one, before those that came later."""
    core = core_with(LongPrompts(), slots=2)
    core.arrive("long 1", long(), 0.0)
    core.arrive("short 1", interactive(), 0.0)
    queue(core, long(), "long 2", at=0.1)
    queue(core, interactive(), "short 2", at=0.2)
    assert [each.ticket for each in core.release("long 1", 1.0, 100)] == ["long 2"]
    assert [each.ticket for each in core.release("short 1", 1.0, 100)] == ["short 2"]


def test_request_that_is_set_aside_and_lacks_slots_then_is_not_overtaken() -> None:
    core = core_with(LongPrompts(), slots=4)
    core.arrive("long 1", long(), 0.0)
    core.arrive("short", interactive(2), 0.0)
    queue(core, AdmissionRequest(INTERACTIVE, 3, LONG + 1, 100), "long of 3", at=0.1)
    core.release("long 1", 1.0, 100)
    assert core.queues.depth == 1
    assert isinstance(core.arrive("small", interactive(), 1.1), Queued), "two slots are free"
    assert isinstance(core.arrive("small bulk", bulk(), 1.1), Queued)
    assert [each.ticket for each in core.release("short", 2.0, 100)] == ["long of 3", "small"]


def test_request_that_is_set_aside_leaves_and_expires_as_any_other() -> None:
    core = core_with(LongPrompts())
    core.arrive("long 1", long(), 0.0)
    queue(core, long(), "leaves", "stays", at=0.1)
    core.leave("leaves", 0.2)
    assert core.queues.depth == 1
    assert core.next_event(0.2) == pytest.approx(60.1)
    [expired] = core.dispatch(60.1)
    assert expired.ticket == "stays"
    assert isinstance(expired.outcome, Refusal)
    assert core.queues.depth == 0
    assert core.blocked_by is None


# Work that passes is bounded


def test_those_that_need_something_else_take_turns() -> None:
    """Colour 1 has all slots, and as much more waits as the engine could ever serve: colour 2 goes
    after as many sequences as the engine has slots."""
    core = core_with(Colours(), slots=4)
    running = [f"one {number}" for number in range(4)]
    for name in running:
        core.arrive(name, interactive(prompt_tokens=1), 0.0)
    queue(core, interactive(prompt_tokens=2), "two", at=0.0)
    served: list[str] = []
    for number in range(12):
        core.arrive(f"more {number}", interactive(prompt_tokens=1), 0.01 * number)
        now = 0.01 * number + 0.005
        for each in core.release(running.pop(0), now, 10):
            served.append(each.ticket)
            running.append(each.ticket)
        if "two" in served or not running:
            break
    assert served.index("two") == 4, "four have passed it, and then it is its turn"


def test_what_needs_nothing_of_it_is_never_held_up() -> None:
    core = core_with(Colours(), slots=8)
    core.arrive("one", interactive(prompt_tokens=1), 0.0)
    queue(core, interactive(prompt_tokens=2), "two", at=0.0)
    for number in range(50):
        name = f"plain {number}"
        assert isinstance(core.arrive(name, interactive(), 0.1 * number), Lease)
        core.release(name, 0.1 * number + 0.05, 10)
    assert isinstance(core.arrive("one more", interactive(prompt_tokens=1), 5.0), Queued), (
        "it would prolong the wait of another, which has waited for long enough"
    )
    assert [each.ticket for each in core.release("one", 6.0, 10)] == ["two"]
    assert [each.ticket for each in core.release("two", 7.0, 10)] == ["one more"]


# All of them


def mixture(seed: int, seconds: float, per_s: float) -> list[Coming]:
    """Requests of both classes, some with long prompts, and of three colours."""
    chance, at = random.Random(seed), 0.0
    found = []
    while (at := at + chance.expovariate(per_s)) < seconds:
        of_class = chance.choice([INTERACTIVE, BULK])
        prompt = chance.choice([0, 0, 0, 1, 2, LONG + 1])
        request = AdmissionRequest(of_class, 1, prompt, 10)
        found.append(Coming(at, request, chance.uniform(0.05, 0.4)))
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("made_up", MADE_UP)
def test_nobody_blocked_is_promised_an_immediate_start_and_all_go_in_the_end(
    made_up: type[Constraint], seed: int
) -> None:
    constraint = made_up()
    lasting = class_rules(max_wait_s=3600.0, queue_capacity=4096)
    core = AdmissionController(rules(lasting, lasting), random.Random(1), (constraint,))
    core.engine_reports(report(16, **FAST), 0.0)
    coming = mixture(seed, 240.0, 5.0)
    went = play(core, coming, 1200.0).went
    assert (len(went), core.queues.depth) == (len(coming), 0), (
        "nothing starves, and it wakes without events"
    )
    blocked = [each for each in went if each.waited_s > 0.001]
    assert blocked
    promised_0 = [each for each in blocked if each.promised_ms == 0 and each.waited_s > 0.05]
    assert promised_0 == []
    assert core.ledger.leased == core.queues.depth == core.queues.aside_count == 0
    assert not getattr(constraint, "running", 0), "sums return to zero"


@pytest.mark.parametrize("made_up", MADE_UP)
def test_client_that_waits_for_something_else_than_slots_is_shown_no_immediate_start(
    made_up: type[Constraint],
) -> None:
    core = core_with(made_up())
    for number in range(1, 5):
        core.arrive(str(number), interactive(prompt_tokens=LONG + number), 61.0)  # at night
    shown = core.forecaster.starts(INTERACTIVE, core.blocked_by, 61.0)
    assert {start_s for _, start_s in shown} == {None}, "that is not known"


@pytest.mark.parametrize("made_up", [LongPrompts, Colours])
def test_nobody_waits_whom_it_does_not_concern(made_up: type[Constraint]) -> None:
    core = core_with(made_up())
    went = play(core, mixture(1, 60.0, 5.0), 200.0).went
    others = [each for each in went if not core.constraints.all[1].is_used_by(each.request)]
    assert others
    assert max(each.waited_s for each in others) == 0.0, "there are more slots than requests"


@pytest.mark.parametrize("made_up", MADE_UP)
def test_simulator_runs_with_it(made_up: type[Constraint]) -> None:
    """Admission is the code that `orch sidecar` runs: the simulator need not know of it."""
    shape, cloud = EngineShape(8), load("cloud").admission
    arrivals = Workload(bulk_share=0.3).arrivals(4.0, 30.0, 1)

    def front(outcomes: Outcomes) -> Admitted:
        made = Admitted(cloud, Sight(), outcomes, 1)
        made._controller = AdmissionController(cloud, random.Random(1), (made_up(),))
        return made

    course = Run(shape, arrivals, 30.0, front).to_the_end()
    started = [each for each in course.records if each.started_at is not None]
    refused = [each for each in course.records if each.refused is not None]
    assert len(started) + len(refused) == len(course.records)
    assert started
    assert course.peak <= shape.slots


def test_every_constraint_of_an_engine_says_what_it_is_and_keeps_nothing() -> None:
    core = core_of(4, step_time=STEP_TIME, prefill_tokens_per_s=1000.0)
    names = [each.reason for each in core.constraints.all]
    assert len(names) == len(set(names)) + 1, "slots are of the engine, and offered by it"
    assert core.constraints.reasons == list(dict.fromkeys(names))
    request = bulk(prompt_tokens=100, max_tokens=10)
    before = [each.room(BULK, Occupancy(0, 0), 0.0) for each in core.constraints.all]
    for each in core.constraints.all:
        assert isinstance(each.scope, Scope)
        assert each.text()
        assert (each.starts_in_s(request, Ahead(), 0.0) or 0.0) >= 0.0
        at = each.clears_at(request, 5.0)
        assert at is None or at > 5.0 or not each.blocks(request, Occupancy(0, 0), 5.0)
    core.arrive("a", request, 0.0)
    core.release("a", 1.0, 10)
    assert [each.room(BULK, Occupancy(0, 0), 0.0) for each in core.constraints.all] == before

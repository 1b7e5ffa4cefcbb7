"""How long requests take, and when those who wait will start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.schedule import Schedule
from orch_sidecar.admission.prediction.service_time import FRESH_S, RunningRequest, ServiceTimes
from orch_sidecar.admission.types import AdmissionRequest
from tests.orch_sidecar.admission.examples import BULK, INTERACTIVE, STEP_TIME, bulk, interactive
from vllm_plugin.profile import ServiceClass


def outlook_of(batch: int = 10) -> ServiceTimes:
    """Steps of 10 ms + 1 ms for each sequence, and 1000 tokens of prompts per second."""
    outlook = ServiceTimes(ledger := Ledger())
    ledger.foreign = batch
    outlook.step_time, outlook.prefill_tokens_per_s = STEP_TIME, 1000.0
    return outlook


def plan_of(
    outlook: ServiceTimes,
    service_class: ServiceClass = INTERACTIVE,
    *,
    now: float = 0.0,
    free: int = 0,
    kept: int = 0,
    only: ServiceClass | None = None,
    waiting: Iterable[AdmissionRequest] = (),
    few: bool = True,
) -> Schedule:
    queued = list(waiting)
    plan = outlook.plan(
        service_class,
        now,
        free,
        kept,
        only,
        lambda which: [ask for ask in queued if ask.service_class is which],
        few,
    )
    assert plan is not None
    return plan


def start(plan: Schedule, cost: int = 1) -> float:
    at = plan.start(cost)
    assert at is not None
    return at


def test_without_a_step_time_nothing_is_known() -> None:
    outlook = ServiceTimes(Ledger())
    ask = interactive(max_tokens=100)
    assert outlook.first_token_s(ask) is None
    assert outlook.service_s(ask) is None
    assert outlook.remaining_s(RunningRequest(ask, 0.0), 1.0) is None
    outlook.runs["a"] = RunningRequest(ask, 0.0)
    assert outlook.plan(INTERACTIVE, 0.0, 1, 0, None, lambda _: (), True) is None


def test_first_token_comes_after_the_prompt_and_a_step_with_it() -> None:
    assert outlook_of().first_token_s(interactive(prompt_tokens=500)) == pytest.approx(0.521)
    assert outlook_of().first_token_s(interactive(4, prompt_tokens=500)) == pytest.approx(0.524)


def test_a_prompt_costs_nothing_that_is_known_while_its_rate_is_not() -> None:
    outlook = outlook_of()
    outlook.prefill_tokens_per_s = None
    assert outlook.first_token_s(interactive(prompt_tokens=500)) == pytest.approx(0.021)


def test_a_request_takes_its_prompt_and_a_step_for_each_token() -> None:
    ask = interactive(prompt_tokens=500, max_tokens=100)
    assert outlook_of().service_s(ask) == pytest.approx(2.5), "it follows on another"
    assert outlook_of().service_s(ask, joins=True) == pytest.approx(2.6)
    assert outlook_of().service_s(interactive()) is None, "of unknown length"


def test_tokens_of_one_step_share_its_time() -> None:
    outlook = outlook_of()
    one_s = outlook.service_s(interactive(max_tokens=100))
    outlook.step_time = replace(STEP_TIME, tokens=2.0)
    assert one_s is not None
    assert outlook.service_s(interactive(max_tokens=100)) == pytest.approx(one_s / 2)
    assert outlook.first_token_s(interactive()) == outlook_of().first_token_s(interactive())


def test_what_is_left_shrinks_as_it_runs_and_is_never_less_than_a_step() -> None:
    outlook = outlook_of()
    run = RunningRequest(interactive(prompt_tokens=500, max_tokens=100), 10.0)
    assert outlook.remaining_s(run, 10.0) == pytest.approx(2.5)
    assert outlook.remaining_s(run, 10.4) == pytest.approx(2.1)
    assert outlook.remaining_s(run, 11.5) == pytest.approx(1.0)
    assert outlook.remaining_s(run, 99.0) == pytest.approx(0.02)


def test_it_learns_how_much_slower_the_engine_is_than_its_steps() -> None:
    outlook = outlook_of()
    ask = interactive(max_tokens=100)
    for _ in range(100):
        outlook.ended(RunningRequest(ask, 0.0), 6.3, 100.0)  # three times as long
    assert outlook.service_s(ask) == pytest.approx(6.0, rel=0.01)
    assert outlook.first_token_s(ask) == pytest.approx(0.063, rel=0.01)


def test_one_strange_answer_changes_little() -> None:
    outlook = outlook_of()
    ask = interactive(max_tokens=100)
    outlook.ended(RunningRequest(ask, 0.0), 1e6, 100.0)
    service_s = outlook.service_s(ask)
    assert service_s is not None
    assert service_s <= 4.0


def test_an_answer_of_one_token_says_nothing_of_the_speed() -> None:
    outlook = outlook_of()
    outlook.ended(RunningRequest(interactive(max_tokens=100), 0.0), 9.0, 1.0)
    assert outlook.service_s(interactive(max_tokens=100)) == pytest.approx(0.02)


def test_an_aborted_answer_teaches_nothing() -> None:
    outlook = outlook_of()
    outlook.ended(RunningRequest(interactive(max_tokens=100), 0.0), 9.0, None)
    assert outlook.service_s(interactive(max_tokens=100)) == pytest.approx(2.0)


def test_once_much_is_known_one_answer_in_five_milliseconds_is_enough() -> None:
    outlook = outlook_of()
    for number in range(1001):
        outlook.ended(RunningRequest(interactive(), 0.0), number / 1e6, 10.0)
    lengths = outlook.lengths
    assert lengths.expected(INTERACTIVE, None) == pytest.approx(10.0), "each of them taught"
    for number in range(200):
        outlook.ended(RunningRequest(interactive(), 0.0), 0.001 + number / 1e6, 500.0)
    assert lengths.expected(INTERACTIVE, None) == pytest.approx(10.0)
    for number in range(200):
        outlook.ended(RunningRequest(interactive(), 0.0), 0.0061 + number / 199, 500.0)
    assert lengths.expected(INTERACTIVE, None) == pytest.approx(500.0)


def test_a_free_slot_is_had_at_once() -> None:
    assert start(plan_of(outlook_of(), free=1)) == 0


def test_a_taken_slot_is_had_when_its_request_should_end() -> None:
    outlook = outlook_of()
    outlook.runs["a"] = RunningRequest(bulk(max_tokens=100), 0.0)
    outlook.runs["b"] = RunningRequest(bulk(2, max_tokens=50), 0.0)
    plan = plan_of(outlook)
    assert [start(plan, cost) for cost in (1, 2, 3)] == pytest.approx([1.0, 1.0, 2.0])


def test_only_the_ends_of_one_class_count_for_those_who_wait_among_themselves() -> None:
    outlook = outlook_of()
    outlook.runs["b"] = RunningRequest(bulk(max_tokens=10), 0.0)
    outlook.runs["i"] = RunningRequest(interactive(max_tokens=100), 0.0)
    assert start(plan_of(outlook)) == pytest.approx(0.2)
    assert start(plan_of(outlook, only=INTERACTIVE, few=False)) == pytest.approx(2.0)
    assert len(plan_of(outlook, only=INTERACTIVE)) == 1
    assert start(plan_of(outlook, few=False)) == pytest.approx(0.2), "another plan again"


def test_a_run_of_unknown_length_is_no_trouble_to_the_other_class() -> None:
    outlook = outlook_of()
    outlook.runs["b"] = RunningRequest(bulk(), 0.0)
    outlook.runs["i"] = RunningRequest(interactive(max_tokens=100), 0.0)
    assert start(plan_of(outlook, only=INTERACTIVE)) == pytest.approx(2.0)


def test_those_who_wait_go_before_one_that_comes() -> None:
    outlook = outlook_of()
    queued = [interactive(max_tokens=50), interactive(max_tokens=100)]
    assert start(plan_of(outlook, free=1, waiting=queued)) == pytest.approx(3.0)


def test_bulk_waits_for_interactive_ones_and_not_the_other_way_round() -> None:
    queued = [interactive(max_tokens=50), bulk(max_tokens=100)]
    assert start(plan_of(outlook_of(), INTERACTIVE, free=1, waiting=queued)) == pytest.approx(1.0)
    assert start(plan_of(outlook_of(), BULK, free=1, waiting=queued)) == pytest.approx(3.0)


def test_bulk_does_not_get_the_slots_that_are_kept() -> None:
    outlook = outlook_of()
    outlook.runs["a"] = RunningRequest(bulk(max_tokens=100), 0.0)
    assert start(plan_of(outlook, BULK, free=1, kept=1)) == pytest.approx(2.0)
    assert start(plan_of(outlook, INTERACTIVE, free=1, kept=1)) == 0


def test_a_request_that_was_placed_is_ahead_of_the_next() -> None:
    outlook = outlook_of()
    plan = plan_of(outlook, free=1)
    assert outlook.placed(plan, interactive(max_tokens=100)) == 0
    assert start(plan_of(outlook, free=1)) == pytest.approx(2.0)
    assert start(plan_of(outlook, BULK, free=1)) == pytest.approx(2.0)


def test_a_plan_is_made_anew_after_a_change_or_a_while() -> None:
    outlook = outlook_of()
    outlook.runs["a"] = RunningRequest(bulk(max_tokens=100), 0.0)
    assert start(plan_of(outlook)) == pytest.approx(2.0)
    del outlook.runs["a"]
    assert start(plan_of(outlook, free=1)) == pytest.approx(2.0), "nobody said anything"
    outlook.changed()
    assert start(plan_of(outlook, free=1, few=False)) == pytest.approx(2.0), "too many wait"
    assert start(plan_of(outlook, free=1)) == 0
    outlook.runs["b"] = RunningRequest(bulk(max_tokens=100), 0.0)
    assert start(plan_of(outlook, now=2 * FRESH_S, few=False)) == pytest.approx(2.0 - 2 * FRESH_S)


def test_a_run_of_unknown_length_leaves_all_unknown() -> None:
    outlook = outlook_of()
    outlook.runs["a"] = RunningRequest(bulk(), 0.0)
    assert outlook.plan(INTERACTIVE, 0.0, 3, 0, None, lambda _: (), True) is None

"""How long requests take, and when queued ones start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.freed_slots import Schedule
from orch_sidecar.admission.prediction.service_time import (
    MAX_AGE_S,
    MAX_FACTOR,
    MAX_FRESH_LEASES,
    MIN_FACTOR,
    ServiceTimes,
    Slowness,
)
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease
from tests.orch_sidecar.admission.examples import INTERACTIVE, STEP_TIME, bulk, interactive
from vllm_plugin.contracts.profile import ServiceClass


class LeasedServiceTimes(ServiceTimes):
    """Service times of an engine whose batch stays the same, however much of it is leased."""

    def __init__(self, batch: int = 10) -> None:
        self.ledger = Ledger()
        self.ledger.foreign = batch
        super().__init__(self.ledger)

    def run(self, lease_id: str, request: AdmissionRequest) -> None:
        self.ledger.grant(lease_id, request, 0.0)
        self.ledger.foreign -= request.cost

    def end(self, lease_id: str) -> None:
        lease = self.ledger.release(lease_id, 0.0)
        assert lease is not None
        self.ledger.foreign += lease.cost


def service_times_of(batch: int = 10) -> LeasedServiceTimes:
    """Steps of 10 ms + 1 ms for each sequence, and 1000 tokens of prompts per second."""
    service_times = LeasedServiceTimes(batch)
    report = EngineReport("e", 2 * batch, prefill_tokens_per_s=1000.0)
    service_times.reported(report, STEP_TIME, 0.0)
    return service_times


def complete(
    service_times: ServiceTimes, request: AdmissionRequest, now: float, output_tokens: int
) -> None:
    """A request that got its slot at 0 s completes."""
    lease = Lease("a", request.cost, "e", request)
    service_times.learn([(lease, request.cost * output_tokens, True, now)])


def schedule_of(
    service_times: ServiceTimes,
    *,
    now: float = 0.0,
    free: int = 0,
    only: ServiceClass | None = None,
) -> Schedule:
    schedule = service_times.schedule(now, free, only)
    assert schedule is not None
    return schedule


def start(schedule: Schedule, cost: int = 1) -> float:
    at = schedule.start(cost)
    assert at is not None
    return at


def test_without_a_step_time_nothing_is_known() -> None:
    service_times = LeasedServiceTimes()
    request = interactive(max_tokens=100)
    assert service_times.first_token_s(request) is None
    assert service_times.service_s(request) is None
    service_times.run("a", request)
    [lease] = service_times.ledger.all()
    assert service_times.remaining_s(lease, request, 1.0) is None
    assert service_times.schedule(0.0, 1, None) is None


def test_first_token_comes_after_the_prompt_and_a_step_with_it() -> None:
    assert service_times_of().first_token_s(interactive(prompt_tokens=500)) == pytest.approx(0.521)
    assert service_times_of().first_token_s(interactive(4, prompt_tokens=500)) == pytest.approx(
        0.524
    )


def test_a_prompt_costs_nothing_that_is_known_while_its_rate_is_not() -> None:
    service_times = service_times_of()
    service_times.reported(EngineReport("e", 20), STEP_TIME, 0.0)
    assert service_times.first_token_s(interactive(prompt_tokens=500)) == pytest.approx(0.021)


def test_a_request_takes_its_prompt_and_a_step_for_each_token() -> None:
    request = interactive(prompt_tokens=500, max_tokens=100)
    assert service_times_of().service_s(request) == pytest.approx(2.5), "it follows on another"
    assert service_times_of().service_s(request, joins=True) == pytest.approx(2.6)
    assert service_times_of().service_s(interactive()) is None, "of unknown length"


def test_tokens_of_one_step_share_its_time() -> None:
    service_times = service_times_of()
    one_s = service_times.service_s(interactive(max_tokens=100))
    service_times.step_time = replace(STEP_TIME, tokens=2.0)
    assert one_s is not None
    assert service_times.service_s(interactive(max_tokens=100)) == pytest.approx(one_s / 2)
    assert service_times.first_token_s(interactive()) == service_times_of().first_token_s(
        interactive()
    )


def test_what_is_left_shrinks_as_it_runs_and_is_never_less_than_a_step() -> None:
    service_times = service_times_of()
    request = interactive(prompt_tokens=500, max_tokens=100)
    service_times.run("a", request)
    [lease] = service_times.ledger.all()
    service_times.prompts.sent(lease, request.prompt_tokens, 0.0)
    assert service_times.remaining_s(lease, request, 0.0) == pytest.approx(2.5)
    assert service_times.remaining_s(lease, request, 0.4) == pytest.approx(2.1)
    assert service_times.remaining_s(lease, request, 1.5) == pytest.approx(1.0)
    assert service_times.remaining_s(lease, request, 89.0) == pytest.approx(0.02)


def test_it_learns_how_much_slower_the_engine_is_than_its_steps() -> None:
    service_times = service_times_of()
    request = interactive(max_tokens=100)
    for _ in range(100):
        complete(service_times, request, 6.3, 100)  # three times as long
    assert service_times.service_s(request) == pytest.approx(6.0, rel=0.01)
    assert service_times.first_token_s(request) == pytest.approx(0.063, rel=0.01)


def test_one_strange_answer_changes_little() -> None:
    service_times = service_times_of()
    request = interactive(max_tokens=100)
    complete(service_times, request, 1e6, 100)
    service_s = service_times.service_s(request)
    assert service_s is not None
    assert service_s <= 4.0


def test_response_of_one_token_is_no_measure_of_speed() -> None:
    service_times = service_times_of()
    complete(service_times, interactive(max_tokens=100), 9.0, 1)
    assert service_times.service_s(interactive(max_tokens=100)) == pytest.approx(0.02)


def test_once_much_is_known_one_answer_in_five_milliseconds_is_enough() -> None:
    service_times = service_times_of()
    for number in range(1001):
        complete(service_times, interactive(), number / 1e6, 10)
    lengths = service_times.lengths
    assert lengths.expected(INTERACTIVE, None) == pytest.approx(10.0), "each of them taught"
    for number in range(200):
        complete(service_times, interactive(), 0.001 + number / 1e6, 500)
    assert lengths.expected(INTERACTIVE, None) == pytest.approx(10.0)
    for number in range(200):
        complete(service_times, interactive(), 0.0061 + number / 199, 500)
    assert lengths.expected(INTERACTIVE, None) == pytest.approx(500.0)


def test_a_free_slot_is_had_at_once() -> None:
    assert start(schedule_of(service_times_of(), free=1)) == 0


def test_a_taken_slot_is_had_when_its_request_should_end() -> None:
    service_times = service_times_of()
    service_times.run("a", bulk(max_tokens=100))
    service_times.run("b", bulk(2, max_tokens=50))
    schedule = schedule_of(service_times)
    assert [start(schedule, cost) for cost in (1, 2, 3)] == pytest.approx([1.0, 1.0, 2.0])


def test_only_ends_of_the_class_count_for_requests_that_wait_for_it() -> None:
    service_times = service_times_of()
    service_times.run("b", bulk(max_tokens=10))
    service_times.run("i", interactive(max_tokens=100))
    assert start(schedule_of(service_times)) == pytest.approx(0.2)
    assert start(schedule_of(service_times, only=INTERACTIVE)) == pytest.approx(2.0)
    assert len(schedule_of(service_times, only=INTERACTIVE)) == 1
    assert start(schedule_of(service_times)) == pytest.approx(0.2), "another plan again"


def test_a_run_of_unknown_length_is_no_trouble_to_the_other_class() -> None:
    service_times = service_times_of()
    service_times.run("b", bulk())
    service_times.run("i", interactive(max_tokens=100))
    assert start(schedule_of(service_times, only=INTERACTIVE)) == pytest.approx(2.0)


def test_a_placed_request_is_ahead_of_the_next() -> None:
    schedule = schedule_of(service_times_of(), free=1)
    service_times = service_times_of()
    service_times.place(schedule, interactive(prompt_tokens=500, max_tokens=100))
    assert start(schedule) == pytest.approx(2.0), "of decoding"
    assert service_times.start_s(schedule, 1) == pytest.approx(2.5), "and its prompt"


def test_ends_are_predicted_again_after_a_change() -> None:
    service_times = service_times_of()
    service_times.run("a", bulk(max_tokens=100))
    assert start(schedule_of(service_times)) == pytest.approx(2.0)
    service_times.run("b", bulk(max_tokens=50))
    assert start(schedule_of(service_times)) == pytest.approx(1.0)
    [first, _] = service_times.ledger.all()
    first.closing = True
    assert start(schedule_of(service_times)) == pytest.approx(1.0), "nothing was invalidated"
    service_times.invalidate()
    assert start(schedule_of(service_times)) < 0.5


def test_with_many_running_ends_are_predicted_again_after_a_while() -> None:
    service_times = service_times_of(100)
    for number in range(MAX_FRESH_LEASES + 1):
        service_times.run(f"{number}", bulk(max_tokens=100 + number))
    first_s = start(schedule_of(service_times))
    service_times.end("0")
    service_times.invalidate()
    assert len(schedule_of(service_times, free=1)) == MAX_FRESH_LEASES + 1, (
        "the slot is counted once"
    )
    assert start(schedule_of(service_times, now=MAX_AGE_S / 2)) > first_s, "the first has ended"
    assert start(schedule_of(service_times, now=2 * MAX_AGE_S)) == pytest.approx(
        first_s * 101 / 100 - 2 * MAX_AGE_S
    )


# Tokens that count for a key


def test_a_request_counts_as_its_prompt_and_twice_its_expected_output() -> None:
    service_times = service_times_of()
    assert service_times.expected_tokens(interactive(prompt_tokens=50, max_tokens=100)) == 251
    assert service_times.expected_tokens(interactive(2, prompt_tokens=50, max_tokens=100)) == 451
    complete(service_times, interactive(max_tokens=100), 1.0, 30)
    assert service_times.expected_tokens(interactive(prompt_tokens=50, max_tokens=100)) == 111
    assert service_times.expected_tokens(interactive()) > 1, "also where nothing is known"


def test_a_request_that_ended_counts_as_what_it_took() -> None:
    service_times = service_times_of()
    request = interactive(2, prompt_tokens=50, max_tokens=100)
    lease = service_times.ledger.grant("a", request, 0.0)
    lease.expected_tokens = service_times.expected_tokens(request)
    assert service_times.tokens_used(lease, request, 60, 1.0) == 171


def test_a_request_that_was_cut_short_counts_as_what_its_time_allows() -> None:
    """20 ms per token."""
    service_times = service_times_of()
    request = interactive(max_tokens=1000)
    service_times.run("a", request)
    [lease] = service_times.ledger.all()
    lease.expected_tokens = 21
    assert service_times.tokens_used(lease, request, None, 0.1) == 21, "no less than in advance"
    assert service_times.tokens_used(lease, request, None, 10.0) == 1001
    assert service_times.tokens_used(lease, request, None, 1e6) == 2001, "no more than its limit"
    service_times.step_time = None
    assert service_times.tokens_used(lease, request, None, 10.0) == 21


def test_a_run_of_unknown_length_leaves_all_unknown() -> None:
    service_times = service_times_of()
    service_times.run("a", bulk())
    assert service_times.schedule(0.0, 3, None) is None


SHORT_S, LONG_S, WAIT_S = 0.1, 10.0, 0.05


def test_nothing_learned_changes_nothing() -> None:
    assert Slowness().factor == 1.0


def test_wait_for_a_step_does_not_make_long_requests_longer() -> None:
    """Each takes 50 ms beyond its prediction: half of a short request, hardly any of a long one."""
    slowness = Slowness()
    for _ in range(100):
        for predicted_s in (SHORT_S, SHORT_S, SHORT_S, LONG_S):
            slowness.learn(predicted_s + WAIT_S, predicted_s)
    assert slowness.factor * LONG_S == pytest.approx(LONG_S, rel=0.05)


def test_change_is_followed_within_some_tens_of_requests() -> None:
    slowness = Slowness()
    for factor in (1.0, 3.0, 0.5):
        for _ in range(60):
            slowness.learn(factor * LONG_S, LONG_S)
        assert slowness.factor == pytest.approx(factor, rel=0.02)


def test_one_strange_time_changes_little() -> None:
    slowness = Slowness()
    slowness.learn(1e6, LONG_S)
    assert slowness.factor <= 2.0


@pytest.mark.parametrize(("took_s", "bound"), [(1e6, MAX_FACTOR), (1e-6, MIN_FACTOR)])
def test_factor_has_bounds(took_s: float, bound: float) -> None:
    slowness = Slowness()
    for _ in range(1000):
        slowness.learn(took_s, LONG_S)
    assert slowness.factor == bound

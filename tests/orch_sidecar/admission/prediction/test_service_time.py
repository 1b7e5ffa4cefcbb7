"""How long requests take, and how many tokens they generate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.prediction.service_time import (
    MAX_FACTOR,
    MAX_SAMPLES,
    MIN_FACTOR,
    OutputLengths,
    ServiceTimes,
    Slowness,
)
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease
from tests.orch_sidecar.admission.examples import BULK, INTERACTIVE, STEP_TIME, interactive
from tests.orch_sidecar.admission.prediction.leased import LeasedServiceTimes, service_times_of


def complete(
    service_times: ServiceTimes, request: AdmissionRequest, now: float, output_tokens: int
) -> None:
    """A request that got its slot at 0 s completes."""
    lease = Lease("a", request.cost, "e", request)
    service_times.learn([(lease, request.cost * output_tokens, True, now)])


def test_without_a_step_time_nothing_is_known() -> None:
    service_times = LeasedServiceTimes()
    request = interactive(max_tokens=100)
    assert service_times.first_token_s(request) is None
    assert service_times.service_s(request) is None
    service_times.run("a", request)
    [lease] = service_times.ledger.all()
    assert service_times.remaining_s(lease, request, 1.0) is None
    assert service_times.freed.schedule(0.0, 1, None) is None


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


def learned(*tokens: float, max_tokens: int | None = None) -> OutputLengths:
    lengths = OutputLengths()
    for each in tokens:
        lengths.learn(INTERACTIVE, max_tokens, each)
    return lengths


def test_without_experience_a_request_generates_what_it_may() -> None:
    assert OutputLengths().expected(BULK, 512) == 512
    assert OutputLengths().remaining(BULK, 512, 12.0) == 500


def test_without_experience_and_limit_nothing_is_guessed() -> None:
    assert OutputLengths().expected(BULK, None) is None
    assert OutputLengths().remaining(BULK, None, 12.0) is None


def test_request_without_limit_is_expected_to_generate_the_mean() -> None:
    assert learned(10, 20, 60).expected(INTERACTIVE, None) == 30


def test_request_with_a_limit_is_expected_to_use_the_mean_share_of_it() -> None:
    lengths = learned(10, 20, 60, max_tokens=100)
    assert lengths.expected(INTERACTIVE, 100) == pytest.approx(30)
    assert lengths.expected(INTERACTIVE, 70) == pytest.approx(21)


def test_limits_are_alike_within_a_power_of_two() -> None:
    lengths = learned(10, 20, 60, max_tokens=100)
    assert lengths.expected(INTERACTIVE, 127) == pytest.approx(38.1)
    assert lengths.expected(INTERACTIVE, 128) == 128


def test_those_that_always_run_to_their_limit_are_known_exactly() -> None:
    lengths = OutputLengths()
    for limit in (64, 90, 127):
        lengths.learn(BULK, limit, limit)
    assert lengths.expected(BULK, 100) == 100
    assert lengths.remaining(BULK, 100, 30.0) == 70


def test_expectation_is_never_above_the_limit() -> None:
    assert learned(150, 190, max_tokens=100).expected(INTERACTIVE, 64) == 64


def test_the_other_class_and_other_limits_are_another_matter() -> None:
    lengths = learned(10, max_tokens=100)
    assert lengths.expected(BULK, 100) == 100
    assert lengths.expected(INTERACTIVE, None) is None


def test_what_is_left_is_learned_from_those_that_went_further() -> None:
    lengths = learned(10, 20, 60, 100, max_tokens=100)
    assert lengths.remaining(INTERACTIVE, 100, 0.0) == pytest.approx(47.5)
    assert lengths.remaining(INTERACTIVE, 100, 20.0) == pytest.approx(60)
    assert lengths.remaining(INTERACTIVE, 100, 60.0) == pytest.approx(40)


def test_a_request_that_went_further_than_any_goes_on_for_a_quarter_of_that() -> None:
    assert learned(10, 20).remaining(INTERACTIVE, None, 40.0) == 10
    assert learned(10, 20, max_tokens=100).remaining(INTERACTIVE, 100, 40.0) == pytest.approx(10)


def test_what_is_left_never_goes_beyond_the_limit_and_is_a_token_at_least() -> None:
    lengths = learned(20, max_tokens=100)
    assert lengths.remaining(INTERACTIVE, 100, 96.0) == pytest.approx(4)
    assert lengths.remaining(INTERACTIVE, 100, 100.0) == 1
    assert lengths.remaining(INTERACTIVE, 100, 130.0) == 1


def test_a_limit_of_nothing_is_no_trouble() -> None:
    lengths = learned(0, max_tokens=0)
    assert lengths.expected(INTERACTIVE, 0) == 0
    assert lengths.remaining(INTERACTIVE, 0, 0.0) == 1


def test_only_the_most_recent_answers_count() -> None:
    lengths = learned(*[1000.0] * MAX_SAMPLES)
    for _ in range(MAX_SAMPLES):
        lengths.learn(INTERACTIVE, None, 10.0)
    assert lengths.expected(INTERACTIVE, None) == 10
    assert lengths.remaining(INTERACTIVE, None, 5.0) == 5


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=2 * MAX_SAMPLES),
    st.floats(0, 6000),
    st.integers(1, 9),
)
def test_what_is_left_is_the_mean_residual_life_of_the_recent_answers(
    tokens: list[int], produced: float, every: int
) -> None:
    lengths = OutputLengths()
    for number, count in enumerate(tokens):
        lengths.learn(BULK, None, count)
        if number % every == 0:
            lengths.remaining(BULK, None, produced)  # asking between changes nothing
    longer = [each for each in tokens[-MAX_SAMPLES:] if each > produced]
    expected = sum(longer) / len(longer) - produced if longer else produced / 4
    left = lengths.remaining(BULK, None, produced)
    assert left is not None
    assert abs(left - max(1.0, expected)) < 1e-6


@given(
    samples=st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=400),
    produced=st.floats(0.0, 25.0),
)
def test_what_was_asked_before_changes_no_prediction(
    samples: list[tuple[int, bool]], produced: float
) -> None:
    asked, recent = OutputLengths(), [float(tokens) for tokens, _ in samples][-MAX_SAMPLES:]
    for tokens, asks in samples:
        asked.learn(INTERACTIVE, None, tokens)
        if asks:
            asked.remaining(INTERACTIVE, None, produced)
    alone = learned(*recent)
    assert asked.remaining(INTERACTIVE, None, produced) == alone.remaining(
        INTERACTIVE, None, produced
    )

"""The time per token of real traffic, against the fit of decode-only steps."""

from __future__ import annotations

import pytest

from vllm_plugin.contracts.token_time import RUN_STEPS, STEPS_TO_SEE, WINDOW_S, TokenTimes, Traffic


def fit_s(batch: float) -> float:
    return 0.001 + 0.0001 * batch


def steps(times: TokenTimes, count: int, at_s: float, factor: float, prompt_s: float = 0.0) -> None:
    """Steps of 10 sequences, that take `factor` times the fit."""
    for _ in range(count):
        times.record(at_s, factor * fit_s(10), 10, 10, prompt_s)


def test_without_steps_traffic_adds_nothing() -> None:
    assert TokenTimes().traffic(fit_s, 0.0) == Traffic(1.0, 0.0)


def test_traffic_that_takes_what_the_fit_says_adds_nothing() -> None:
    times = TokenTimes()
    steps(times, 10 * RUN_STEPS, 1.0, 1.0)
    assert times.traffic(fit_s, 1.0).factor == pytest.approx(1.0)


def test_faster_than_the_fit_is_no_reason_for_a_larger_batch() -> None:
    times = TokenTimes()
    steps(times, RUN_STEPS, 1.0, 0.5)
    assert times.traffic(fit_s, 1.0).factor == 1.0


def test_factor_is_exceeded_by_a_twentieth_of_the_tokens() -> None:
    times = TokenTimes()
    for _ in range(18):
        steps(times, RUN_STEPS, 1.0, 1.5)
    steps(times, RUN_STEPS, 1.0, 2.0)
    assert times.traffic(fit_s, 1.0).factor == pytest.approx(2.0), "a nineteenth"
    for _ in range(2):
        steps(times, RUN_STEPS, 1.0, 1.5)
    assert times.traffic(fit_s, 1.0).factor == pytest.approx(1.5), "a twenty-first"


def test_one_slow_step_among_many_is_averaged_as_a_reader_sees_it() -> None:
    times = TokenTimes()
    for _ in range(20):
        steps(times, RUN_STEPS - 1, 1.0, 1.0)
        steps(times, 1, 1.0, 5.0)
    assert times.traffic(fit_s, 1.0).factor == pytest.approx(1.25)


def test_prompts_are_a_share_of_the_time() -> None:
    times = TokenTimes()
    steps(times, RUN_STEPS, 1.0, 2.0, prompt_s=0.001)
    assert times.traffic(fit_s, 1.0).prompt_share == pytest.approx(0.25)


def test_slowness_is_seen_within_a_second_and_forgotten_within_the_window() -> None:
    times = TokenTimes()
    for tick in range(90):
        steps(times, RUN_STEPS, 1.0 + tick / 10, 1.0)
    for tick in range(10):
        steps(times, RUN_STEPS, 10.0 + tick / 10, 2.0)
    assert times.traffic(fit_s, 11.0).factor == pytest.approx(2.0)
    assert times.traffic(fit_s, 11.0 + WINDOW_S).factor == 1.0


def test_steps_without_a_decoding_sequence_give_no_token() -> None:
    times = TokenTimes()
    for _ in range(RUN_STEPS):
        times.record(1.0, 0.1, 3, 0, 0.1)
    assert times.traffic(fit_s, 1.0) == Traffic()


def test_a_batch_is_seen_when_five_steps_were_as_large() -> None:
    times = TokenTimes()
    for batch in (30, 20, 20, 16, 3, 2, 1):
        times.record(1.0, 0.01, batch, batch, 0.0)
    assert times.batch_seen == 3
    times.record(1.0, 0.01, 40, 40, 0.0)
    assert times.batch_seen == 16
    assert STEPS_TO_SEE == 5

"""How much requests generate, learned from those that ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.prediction.output_lengths import MAX_SAMPLES, OutputLengths
from tests.orch_sidecar.admission.examples import BULK, INTERACTIVE


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

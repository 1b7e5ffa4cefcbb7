"""Scales: all values are inside, ticks are round numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.bench.drawing.scales import (
    exact,
    linear,
    logarithmic,
    number_text,
    of_times,
    tick_text,
)

VALUES = st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=20)


@given(VALUES)
def test_linear_scale_holds_all_values_between_its_ticks(values: list[float]) -> None:
    scale = linear(values, least=0.0)
    assert scale.low == 0.0 <= min(values)
    assert scale.high >= max(values) * (1 - 1e-6)
    assert 2 <= len(scale.ticks) <= 13
    assert all(0 <= scale.share(value) <= 1 for value in values)


@given(VALUES)
def test_logarithmic_scale_holds_all_values_between_its_ticks(values: list[float]) -> None:
    scale = logarithmic(values)
    assert scale.low <= min(values) * (1 + 1e-6)
    assert scale.high >= max(values) * (1 - 1e-6)
    assert scale.low < scale.high
    assert all(0 <= scale.share(value) <= 1 for value in values)


def test_ticks_are_round() -> None:
    assert linear([0.0, 97.0]).ticks == (0, 20, 40, 60, 80, 100)
    assert logarithmic([3.0, 40.0]).ticks == pytest.approx((2, 5, 10, 20, 50))
    assert logarithmic([1.0, 20_000.0]).ticks == pytest.approx((1, 10, 100, 1000, 10_000, 100_000))
    assert linear([5.0]).ticks[0] == 0.0
    assert linear([0.0]).high > 0.0


def test_exact_scale_ends_at_its_values() -> None:
    scale = exact(0.3, 119.9)
    assert (scale.low, scale.high) == (0.3, 119.9)
    assert scale.ticks == (50, 100)


def test_times_that_differ_widely_are_logarithmic() -> None:
    assert of_times([1.0, 100.0]).logarithmic
    assert of_times([1e-6, 100.0]).low == pytest.approx(0.1), "the rest lies at its edge"
    assert not of_times([0.0, 100.0]).logarithmic
    assert of_times([90.0, 100.0]).low == pytest.approx(90.0)
    assert of_times([10.0, 100.0]).low == 0.0


def test_zero_has_no_place_on_a_logarithmic_scale() -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        logarithmic([0.0, 1.0])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (1234567.8, "1234568"), (1234.5678, "1235"), (12.3456, "12.35"), (1.5, "1.5"),
        (0.012345, "0.01235"), (0.0000001, "0"), (-3.14159, "-3.142"), (1000.0, "1000"),
    ],
)  # fmt: skip
def test_numbers_have_four_significant_digits(value: float, text: str) -> None:
    assert number_text(value) == text


def test_ticks_have_no_digits_of_rounding() -> None:
    assert [tick_text(tick) for tick in linear([0.0, 0.3]).ticks] == [
        "0", "0.1", "0.2", "0.3",
    ]  # fmt: skip

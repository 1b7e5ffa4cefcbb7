"""The curve that is fitted to given points."""

from __future__ import annotations

import pytest

from vllm_plugin.speed import curve
from vllm_plugin.speed.curve import Curve, fit


@pytest.mark.parametrize(
    "true",
    [Curve(3.1, 0.4, 0.8), Curve(0.0, 2.0, 0.5), Curve(7.0, 0.1, 1.0), Curve(1.0, 1.0, 0.1)],
)
def test_exact_points_recover_the_curve(true: Curve) -> None:
    sizes = (1, 2, 4, 8, 16)
    found = fit({b: true.seconds(b) for b in sizes}, dict.fromkeys(sizes, 10))
    assert found.t0_s == pytest.approx(true.t0_s, abs=0.03)
    assert found.c_s == pytest.approx(true.c_s, abs=0.03)
    assert found.alpha == pytest.approx(true.alpha, abs=0.01)


def test_two_points_give_a_line() -> None:
    found = fit({2: 3.0, 4: 4.0}, {2: 1, 4: 100}, alpha=1.0)
    assert found.t0_s == pytest.approx(2.0)
    assert found.c_s == pytest.approx(0.5)


def test_times_that_fall_with_the_batch_give_a_constant() -> None:
    found = fit({1: 4.0, 8: 2.0}, {1: 1, 8: 1}, alpha=1.0)
    assert found.c_s == 0.0
    assert 2.0 <= found.t0_s <= 4.0


def test_times_that_grow_faster_than_the_batch_give_no_fixed_part() -> None:
    found = fit({1: 1.0, 8: 64.0}, {1: 1, 8: 1}, alpha=1.0)
    assert found.t0_s == 0.0
    assert found.c_s > 1.0


def test_points_with_larger_weights_dominate() -> None:
    found = fit({1: 1.0, 2: 9.0, 3: 1.0}, {1: 100, 2: 1, 3: 100}, alpha=1.0)
    assert found.seconds(2) == pytest.approx(1.0, rel=0.1)


def test_many_sizes_are_merged_into_few_points() -> None:
    sizes = range(1, 4097)
    points = curve._points(dict.fromkeys(sizes, 1.0), dict.fromkeys(sizes, 1))
    assert len(points) <= 120
    assert sum(point.weight for point in points) == 4096
    assert points[0].log_b == 0.0


def test_empty_batch_takes_the_fixed_part() -> None:
    assert Curve(2.0, 1.0, 0.5).seconds(0) == 2.0

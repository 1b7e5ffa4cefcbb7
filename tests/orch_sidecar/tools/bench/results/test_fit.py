"""The curve of step times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.bench.results.sweep import Curve, fit

SIZES = (1, 2, 4, 8, 16)


def points_of(curve: Curve, sizes: tuple[int, ...] = SIZES) -> list[tuple[int, float]]:
    return [(batch, curve.at(batch)) for batch in sizes]


@pytest.mark.parametrize(
    "curve", [Curve(0.567, 0.0833, 1.0), Curve(3.0, 0.4, 0.8), Curve(0.0, 1.0, 0.5)]
)
def test_finds_the_curve_that_points_lie_on(curve: Curve) -> None:
    found = fit(points_of(curve))
    assert found is not None
    assert found.worst_error < 1e-9
    assert found.alpha == pytest.approx(curve.alpha)
    assert found.t0 == pytest.approx(curve.t0, abs=1e-9)
    assert found.c == pytest.approx(curve.c)


def test_curve_of_known_values() -> None:
    assert Curve(0.5, 0.25, 0.5).at(16) == 1.5
    assert Curve(0.567, 0.0833, 1.0).at(16) == pytest.approx(1.9, abs=0.001)


def test_worst_error_is_that_of_the_point_farthest_off() -> None:
    points = [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.0), (6, 9.0)]
    found = fit(points)
    assert found is not None
    errors = [abs(found.at(batch) - time) / time for batch, time in points]
    assert found.worst_error == pytest.approx(max(errors))
    assert errors.index(max(errors)) == 5


def test_times_of_no_slope_or_a_falling_one_are_flat() -> None:
    for times in ((2.0, 2.0, 2.0), (2.2, 2.0, 1.8)):
        found = fit(list(zip((1, 2, 4), times, strict=True)))
        assert found is not None
        assert found.c == pytest.approx(0, abs=1e-12)
        assert found.at(1) == pytest.approx(found.at(64)) == pytest.approx(2, rel=0.02)
    weighed = fit([(1, 20.0), (2, 10.0), (4, 10.0)])
    assert weighed is not None
    assert weighed.t0 == pytest.approx(0.25 / 0.0225), "by deviations as shares of the times"


def test_times_that_grow_faster_than_sequences_have_no_negative_start() -> None:
    found = fit([(1, 1.0), (2, 4.0), (4, 16.0)])
    assert found is not None
    assert (found.t0, found.alpha) == (0.0, 1.0)
    assert found.worst_error > 0.3


def test_fewer_than_three_sizes_have_no_curve() -> None:
    assert fit([]) is None
    assert fit([(1, 1.0), (2, 1.5), (2, 1.6), (1, 1.1)]) is None
    assert fit([(1, 1.0), (2, 1.5), (3, 2.0)]) is not None


@given(
    t0=st.floats(0, 100),
    c=st.floats(0.001, 100),
    alpha=st.floats(0.05, 1),
    noise=st.lists(st.floats(-0.05, 0.05), min_size=5, max_size=5),
)
def test_noise_of_a_twentieth_leaves_the_curve_near_its_points(
    t0: float, c: float, alpha: float, noise: list[float]
) -> None:
    true = Curve(t0, c, alpha)
    points = [(b, true.at(b) * (1 + off)) for b, off in zip(SIZES, noise, strict=True)]
    found = fit(points)
    assert found is not None
    assert found.t0 >= 0
    assert found.c >= 0
    assert 0 < found.alpha <= 1
    assert found.worst_error < 0.13


def test_means_of_what_is_meant_to_be_one_size_are_one() -> None:
    assert fit([(1.0, 1.0), (7.9, 2.0), (7.98, 2.1), (8.0, 2.0)]) is None
    assert fit([(1.0, 1.0), (1.4, 1.1), (2.4, 1.3)]) is not None

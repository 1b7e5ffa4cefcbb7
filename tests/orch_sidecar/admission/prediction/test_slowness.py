"""What requests take over what is predicted of them."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.prediction.slowness import MAX_FACTOR, MIN_FACTOR, Slowness

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

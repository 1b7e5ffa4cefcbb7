"""How many requests are refused for each that is served."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.prediction.pressure import (
    FULL_SHARE,
    MOST,
    PER_REFUSED,
    WINDOW_S,
    Pressure,
)


def pressed(refused: int, served: int, pressure: Pressure | None = None) -> Pressure:
    """A second, after which so many were refused and served."""
    pressure = pressure or Pressure()
    pressure.update(0, 0.0)
    for _ in range(refused):
        pressure.refused(1.0)
    pressure.update(served, 1.0)
    return pressure


def test_without_refusals_a_prompt_counts_once() -> None:
    assert Pressure().again == 0
    assert pressed(0, 100).again == 0


def test_a_prompt_counts_more_often_the_more_are_refused() -> None:
    assert pressed(50, 99).again == pytest.approx(PER_REFUSED / 2)
    assert pressed(10, 99).again == pytest.approx(PER_REFUSED / 10)
    assert pressed(10_000, 1).again == MOST


def test_refusals_are_forgotten() -> None:
    pressure = pressed(50, 99)
    assert pressure.update(199, 1.0 + WINDOW_S) < PER_REFUSED / 5
    assert pressure.update(199, 1.0 + 20 * WINDOW_S) == pytest.approx(0, abs=1e-6)


def test_a_single_refusal_of_a_quiet_engine_is_no_pressure() -> None:
    assert pressed(1, 0).again <= PER_REFUSED
    assert pressed(1, 20).again < PER_REFUSED / 10


def test_refusals_that_are_due_to_bulk_requests_count_less() -> None:
    pressure = Pressure()
    for _ in range(100):
        pressure.refused(FULL_SHARE / 10)
    assert pressure.update(99, 1.0) == pytest.approx(PER_REFUSED / 10)

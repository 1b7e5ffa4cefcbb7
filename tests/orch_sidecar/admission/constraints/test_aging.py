"""The delay clock: how long interactive requests have kept bulk ones waiting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.constraints.aging import DelayClock


def test_it_stands_still_while_nothing_is_taken() -> None:
    clock = DelayClock()
    clock.turn(10.0, 0.0)
    assert clock.value(1000.0) == 0
    assert clock.reaches_at(1.0) is None


def test_it_runs_at_the_share_that_is_taken() -> None:
    clock = DelayClock()
    clock.turn(10.0, 0.25)
    assert clock.value(14.0) == 1
    clock.turn(14.0, 1.0)
    assert clock.value(16.0) == 3


def test_it_tells_when_a_delay_will_be_reached() -> None:
    clock = DelayClock()
    clock.turn(10.0, 0.25)
    assert clock.reaches_at(1.0) == 14.0
    clock.turn(12.0, 0.5)
    assert clock.reaches_at(1.0) == 13.0


def test_a_delay_that_is_reached_was_reached() -> None:
    clock = DelayClock()
    clock.turn(10.0, 1.0)
    clock.turn(15.0, 0.0)
    assert clock.reaches_at(5.0) == 15.0
    assert clock.reaches_at(5.1) is None


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    clock = DelayClock()
    clock.turn(10.0, 1.0)
    assert clock.value(9.0) == 0
    clock.turn(9.0, 1.0)
    assert clock.value(10.0) == 1


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1)), max_size=20))
def test_it_never_goes_back_nor_faster_than_time(turns: list[tuple[float, float]]) -> None:
    clock, now, before = DelayClock(), 0.0, 0.0
    for passed_s, share in turns:
        now += passed_s
        value = clock.value(now)
        assert before - 1e-9 <= value <= before + passed_s + 1e-9
        clock.turn(now, share)
        assert clock.value(now) == pytest.approx(value)
        before = value

"""When queued bulk requests get slots beside interactive traffic."""

from __future__ import annotations

import pytest

from orch_sidecar.admission.prediction.lent_slots import (
    MIN_WINDOW_S,
    RATE_WEIGHT,
    WINDOW_S,
    LentSlots,
    SlotAverage,
)
from orch_sidecar.admission.prediction.schedule import Schedule


def average_of(slots: float, seconds: float, begin: float = 0.0) -> tuple[SlotAverage, float]:
    """An average that was asked for every second while others waited, and the slot-seconds."""
    average = SlotAverage()
    for second in range(int(seconds) + 1):
        average.recent_average(begin + slots * second, waiting=True, now=float(second))
    return average, begin + slots * seconds


def test_average_is_of_the_slot_seconds_while_others_wait() -> None:
    average, slot_s = average_of(4.0, 10)
    assert average.recent_average(slot_s, waiting=True, now=10.0) == 4.0


def test_at_first_the_later_half_counts() -> None:
    average, slot_s = average_of(4.0, 10)
    assert average.recent_average(slot_s + 10 * 8.0, waiting=True, now=20.0) == 8.0


def test_average_is_unknown_at_first_and_when_nobody_waits() -> None:
    average, slot_s = average_of(4.0, 10)
    assert average.recent_average(slot_s + 4.0, waiting=False, now=11.0) is None
    assert average.recent_average(slot_s + 4.0, waiting=True, now=11.0 + 0.9 * MIN_WINDOW_S) is None
    assert (
        average.recent_average(slot_s + 8.0, waiting=True, now=11.0 + MIN_WINDOW_S)
        == 4.0 / MIN_WINDOW_S
    )


def test_slots_before_the_window_are_forgotten() -> None:
    average, slot_s = average_of(16.0, 10)
    for second in range(11, int(WINDOW_S) + 20):
        found = average.recent_average(
            slot_s + 2.0 * (second - 10), waiting=True, now=float(second)
        )
    assert found == 2.0


def test_average_begins_anew_when_the_engine_restarts() -> None:
    average, _ = average_of(4.0, 10, begin=500.0)
    assert average.recent_average(0.0, waiting=True, now=11.0) is None
    assert average.recent_average(3.0, waiting=True, now=12.0) == 3.0


def test_rounding_of_the_slot_seconds_is_no_restart() -> None:
    average, slot_s = average_of(4.0, 10)
    assert average.recent_average(slot_s - 1e-9, waiting=True, now=10.0) == pytest.approx(4.0)


def lent(
    ends_s: list[float], recent_average: float, slowdown: float = 1.0, cost: int = 1
) -> LentSlots:
    return LentSlots(Schedule(ends_s), recent_average, slowdown, 8.0, cost)


def test_start_is_by_the_first_end_and_by_the_mean_rate() -> None:
    """Of four slots one comes free every 2 s if each is lent for 8 s."""
    assert lent([1.0, 3.0, 5.0, 7.0], 4.0).start_s(1, 0) == 1.0 + RATE_WEIGHT * (2.0 - 1.0)


def test_start_is_the_later_the_fewer_slots_bulk_requests_had_of_late() -> None:
    as_now, half = lent([2.0, 2.0], 2.0), lent([2.0, 2.0], 1.0)
    assert half.start_s(1, 0) == 2 * (as_now.start_s(1, 0) or 0.0) > 0


def test_prompts_of_others_stretch_the_ends_but_not_the_measured_rate() -> None:
    plain, slow = lent([4.0, 4.0], 2.0), lent([4.0, 4.0], 2.0, slowdown=2.0)
    assert plain.start_s(1, 0) == 4.0
    assert slow.start_s(1, 0) == 8.0 + RATE_WEIGHT * (4.0 - 8.0)


def test_requests_that_go_before_take_their_slots() -> None:
    slots = lent([0.0, 0.0], 2.0)
    starts = []
    for ahead in range(4):
        starts.append(slots.start_s(1, ahead))
        slots.schedule.place(1, 8.0)
    by_ends, by_rate = [0.0, 0.0, 8.0, 8.0], [4.0, 8.0, 12.0, 16.0]
    expected = [a + RATE_WEIGHT * (b - a) for a, b in zip(by_ends, by_rate, strict=True)]
    assert starts == expected


@pytest.mark.parametrize(("ends_s", "cost"), [([], 1), ([1.0], 3)])
def test_missing_slots_come_free_in_the_time_for_which_one_is_lent(
    ends_s: list[float], cost: int
) -> None:
    """Bulk requests had as many of late: they will have them again."""
    found = lent(ends_s, float(cost), cost=cost)
    assert len(found.schedule) == cost
    assert found.start_s(cost, 0) == 8.0


def test_request_of_more_sequences_than_slots_has_no_start() -> None:
    assert lent([1.0, 2.0], 2.0).start_s(3, 0) is None

"""When slots come free, for queued requests, for refused ones, and for bulk ones beside others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.prediction.freed_slots import (
    DEFAULT_RETRY_MS,
    MAX_AGE_S,
    MAX_FRESH_LEASES,
    MAX_RETRY_MS,
    MIN_RETRY_MS,
    MIN_WINDOW_S,
    RATE_WEIGHT,
    WINDOW_RELEASES,
    WINDOW_S,
    LentSlots,
    ReleaseRate,
    Schedule,
    SlotAverage,
)
from tests.orch_sidecar.admission.examples import INTERACTIVE, bulk, interactive
from tests.orch_sidecar.admission.prediction.leased import LeasedServiceTimes, service_times_of
from vllm_plugin.contracts.profile import ServiceClass


def test_a_request_of_several_sequences_waits_for_the_last_of_its_slots() -> None:
    schedule = Schedule([0.0, 1.0, 3.0])
    assert schedule.place(2, 4.0) == 1.0
    assert schedule.place(1, 1.0) == 3.0
    assert schedule.start(2) == 5.0


def test_no_request_starts_before_an_earlier_one_that_needs_several_slots() -> None:
    schedule = Schedule([0.0, 8.0])
    assert schedule.place(2, 1.0) == 8.0
    assert schedule.place(1, 1.0) == 9.0


def test_more_slots_than_there_are_is_not_foreseen() -> None:
    schedule = Schedule([0.0, 1.0])
    assert schedule.start(3) is None
    assert schedule.place(3, 1.0) is None
    assert schedule.start(2) == 1.0, "nothing was taken"


def test_copy_leaves_out_the_slots_that_come_free_first() -> None:
    schedule = Schedule([3.0, 1.0, 2.0])
    copy = schedule.copy(without=2)
    assert (len(schedule), len(copy)) == (3, 1)
    assert copy.place(1, 9.0) == 3.0
    assert schedule.start(3) == 3.0, "another plan"
    assert len(schedule.copy(without=5)) == 0


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(1, 8), st.floats(0.001, 50)), max_size=30),
)
def test_starts_are_never_negative_and_grow_with_the_position(
    free: list[float], asked: list[tuple[int, float]]
) -> None:
    schedule = Schedule(free)
    starts = []
    for cost, service_s in asked:
        expected = schedule.start(cost)
        start = schedule.place(cost, service_s)
        assert start == expected
        if start is not None:
            starts.append(start)
        assert len(schedule) == len(free)
    assert starts == sorted(starts)
    assert all(start >= 0 for start in starts)


@given(st.lists(st.integers(0, 100), max_size=8), st.integers(0, 60), st.integers(0, 50))
def test_filling_takes_the_slots_that_each_would_take(
    free: list[int], count: int, service_s: int
) -> None:
    filled, placed = (Schedule(map(float, free)) for _ in range(2))
    filled.fill(count, service_s)
    for _ in range(count):
        placed.place(1, service_s)
    for cost in range(1, len(free) + 1):
        assert filled.start(cost) == placed.start(cost)


def test_share_of_the_slots_is_spread_over_the_times_at_which_they_come_free() -> None:
    schedule = Schedule([4.0, 1.0, 3.0, 2.0])
    half = schedule.with_share(0.5)
    assert [half.place(1, 10.0) for _ in range(3)] == [2.0, 4.0, 12.0]
    assert [schedule.with_share(share).start(1) for share in (1.0, 0.75, 0.25)] == [1.0, 2.0, 4.0]
    assert schedule.with_share(0.2).start(1) is None, "none is known to come"


def test_share_of_the_slots_is_no_more_than_there_are_however_it_is_rounded() -> None:
    """15 of 22 slots, of which two sidecars wait: 11 / (22 / 30) is above 15."""
    for slots_total in (22, 50, 100, 200, 256):
        for leased in range(slots_total // 2 + 1, slots_total + 1):
            part = Schedule(float(i) for i in range(leased)).with_share(slots_total / 2 / leased)
            assert abs(len(part) - slots_total / 2) <= 1


def test_unknown_before_two_releases() -> None:
    rate = ReleaseRate()
    assert rate.per_second(0.0) is None
    rate.released(4, 10.0)
    assert rate.per_second(10.0) is None
    assert rate.retry_after_ms(3, 10.0) == DEFAULT_RETRY_MS


def test_first_release_only_starts_the_clock() -> None:
    rate = ReleaseRate()
    rate.released(100, 0.0)
    rate.released(2, 1.0)
    assert rate.per_second(1.0) == 2.0


def test_time_since_the_last_release_counts() -> None:
    rate = ReleaseRate()
    rate.released(1, 0.0)
    rate.released(2, 1.0)
    assert rate.per_second(4.0) == 0.5


def test_retry_after_is_the_time_for_the_slots_ahead() -> None:
    rate = ReleaseRate()
    for second in range(5):
        rate.released(2, float(second))
    assert rate.retry_after_ms(6, 4.0) == 3000


def test_releases_older_than_the_window_are_forgotten() -> None:
    rate = ReleaseRate()
    rate.released(50, 0.0)
    rate.released(50, 1.0)
    assert rate.per_second(1.0 + WINDOW_S + 0.1) is None


def test_only_the_most_recent_releases_count() -> None:
    rate = ReleaseRate()
    rate.released(1_000_000, 0.0)
    rate.released(1_000_000, 0.0)
    for index in range(WINDOW_RELEASES):
        rate.released(1, 1.0 + index)
    assert rate.per_second(1.0 + WINDOW_RELEASES - 1) == 1.0


@given(
    st.lists(st.tuples(st.integers(1, 256), st.floats(0, 10_000)), max_size=80),
    st.integers(1, 10**6),
    st.floats(0, 1000),
)
def test_retry_after_is_always_within_its_bounds(
    releases: list[tuple[int, float]], slots_ahead: int, later_s: float
) -> None:
    rate = ReleaseRate()
    now = 0.0
    for slots, at in sorted(releases, key=lambda release: release[1]):
        rate.released(slots, at)
        now = at
    assert MIN_RETRY_MS <= rate.retry_after_ms(slots_ahead, now + later_s) <= MAX_RETRY_MS


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


# Ends of running requests


def schedule_of(
    service_times: LeasedServiceTimes,
    *,
    now: float = 0.0,
    free: int = 0,
    only: ServiceClass | None = None,
) -> Schedule:
    schedule = service_times.freed.schedule(now, free, only)
    assert schedule is not None
    return schedule


def start(schedule: Schedule, cost: int = 1) -> float:
    at = schedule.start(cost)
    assert at is not None
    return at


def test_a_free_slot_is_had_at_once() -> None:
    assert start(schedule_of(service_times_of(), free=1)) == 0


def test_a_taken_slot_is_had_when_its_request_should_end() -> None:
    service_times = service_times_of()
    service_times.run("a", bulk(max_tokens=100))
    service_times.run("b", bulk(2, max_tokens=50))
    schedule = schedule_of(service_times)
    assert [start(schedule, cost) for cost in (1, 2, 3)] == pytest.approx([1.0, 1.0, 2.0])


def test_only_ends_of_the_class_count_for_requests_that_wait_for_it() -> None:
    service_times = service_times_of()
    service_times.run("b", bulk(max_tokens=10))
    service_times.run("i", interactive(max_tokens=100))
    assert start(schedule_of(service_times)) == pytest.approx(0.2)
    assert start(schedule_of(service_times, only=INTERACTIVE)) == pytest.approx(2.0)
    assert len(schedule_of(service_times, only=INTERACTIVE)) == 1
    assert start(schedule_of(service_times)) == pytest.approx(0.2), "another plan again"


def test_a_run_of_unknown_length_is_no_trouble_to_the_other_class() -> None:
    service_times = service_times_of()
    service_times.run("b", bulk())
    service_times.run("i", interactive(max_tokens=100))
    assert start(schedule_of(service_times, only=INTERACTIVE)) == pytest.approx(2.0)


def test_a_placed_request_is_ahead_of_the_next() -> None:
    schedule = schedule_of(service_times_of(), free=1)
    service_times = service_times_of()
    service_times.freed.place(schedule, interactive(prompt_tokens=500, max_tokens=100))
    assert start(schedule) == pytest.approx(2.0), "of decoding"
    assert service_times.freed.start_s(schedule, 1) == pytest.approx(2.5), "and its prompt"


def test_ends_are_predicted_again_after_a_change() -> None:
    service_times = service_times_of()
    service_times.run("a", bulk(max_tokens=100))
    assert start(schedule_of(service_times)) == pytest.approx(2.0)
    service_times.run("b", bulk(max_tokens=50))
    assert start(schedule_of(service_times)) == pytest.approx(1.0)
    [first, _] = service_times.ledger.all()
    first.closing = True
    assert start(schedule_of(service_times)) == pytest.approx(1.0), "nothing was invalidated"
    service_times.freed.invalidate()
    assert start(schedule_of(service_times)) < 0.5


def test_with_many_running_ends_are_predicted_again_after_a_while() -> None:
    service_times = service_times_of(100)
    for number in range(MAX_FRESH_LEASES + 1):
        service_times.run(f"{number}", bulk(max_tokens=100 + number))
    first_s = start(schedule_of(service_times))
    service_times.end("0")
    service_times.freed.invalidate()
    assert len(schedule_of(service_times, free=1)) == MAX_FRESH_LEASES + 1, (
        "the slot is counted once"
    )
    assert start(schedule_of(service_times, now=MAX_AGE_S / 2)) > first_s, "the first has ended"
    assert start(schedule_of(service_times, now=2 * MAX_AGE_S)) == pytest.approx(
        first_s * 101 / 100 - 2 * MAX_AGE_S
    )


def test_a_run_of_unknown_length_leaves_all_unknown() -> None:
    service_times = service_times_of()
    service_times.run("a", bulk())
    assert service_times.freed.schedule(0.0, 3, None) is None

"""When slots come free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.prediction.schedule import Schedule


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

"""The release rate, and the Retry-After of refused requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.prediction.release_rate import (
    DEFAULT_RETRY_MS,
    MAX_RETRY_MS,
    MIN_RETRY_MS,
    WINDOW_RELEASES,
    WINDOW_S,
    ReleaseRate,
)


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

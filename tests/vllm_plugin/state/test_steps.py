"""The ring of engine steps, the statistics of a window, the rate of prefill, and cached prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_plugin.state.steps import PREFILL_STEPS, BatchStatistics, Prefill, PrefixCache, StepRing


def ring_of(*batches: int, capacity: int = 1000) -> StepRing:
    """Steps of 10 ms, one after the other from time 100.0."""
    ring = StepRing(capacity)
    for index, batch in enumerate(batches):
        ring.record(100.0 + (index + 1) * 0.01, 0.01, batch, decode_only=True)
    return ring


def test_clock_that_is_set_back_keeps_the_order() -> None:
    ring = ring_of(1, 2)
    ring.record(50.0, 0.01, 3, decode_only=True)
    assert ring.since(100.015).steps == 2
    ring.record(100.5, 0.01, 4, decode_only=True)
    assert ring.since(100.4) == BatchStatistics(1, 4, 4.0)


def test_ring_keeps_at_least_its_capacity_and_less_than_twice() -> None:
    ring = StepRing(4)
    for index in range(100):
        ring.record(float(index), 0.0, index + 1, decode_only=True)
        kept = ring.since(-1.0).steps
        assert min(index + 1, 4) <= kept < 8
    assert ring.count == 100
    assert ring.since(97.0) == BatchStatistics(2, 100, 99.5)


def test_counts_of_decode_steps_and_their_sequences_outlive_the_ring() -> None:
    """The part of a window is the difference of two counts, however long ago it began."""
    ring = StepRing(4)
    for index in range(50):
        ring.record(float(index), 0.5, 3, decode_only=True)
        ring.record(index + 0.5, 0.5, 8, decode_only=False)
    assert (ring.decode_count, ring.decode_sequences, ring.count) == (50, 150, 100)
    assert 8 <= ring.count_since(-1.0) < 16, "the ring is bounded"
    before = ring.decode_count, ring.decode_sequences
    ring.record(10.0, 0.5, 2, decode_only=True)  # the clock was set back
    ring.record(51.0, 0.5, 5, decode_only=True)
    assert (ring.decode_count - before[0], ring.decode_sequences - before[1]) == (2, 7)


def test_totals_by_batch_size_count_decode_only_steps() -> None:
    ring = StepRing()
    ring.record(1.0, 0.010, 2, decode_only=True)
    ring.record(2.0, 0.012, 2, decode_only=True)
    ring.record(3.0, 0.500, 2, decode_only=False)
    ring.record(4.0, 0.020, 10, decode_only=True)
    ring.record(5.0, 0.001, 0, decode_only=True)
    assert ring.by_batch() == {"2": [2, 0.022], "10": [1, 0.02]}
    assert list(ring.by_batch()) == ["2", "10"], "by size, not by spelling"


def test_last_batches_are_those_of_decode_steps_the_newest_at_the_end() -> None:
    ring = ring_of(1, 2, 3)
    ring.record(200.0, 0.1, 7, decode_only=False)
    assert ring.last_batches() == [1, 2, 3]
    many = ring_of(*range(1, 1001), capacity=200)
    assert many.last_batches() == list(range(881, 1001))


def test_seconds_in_steps_of_any_kind_add_up() -> None:
    ring = StepRing(4)
    for index in range(20):
        ring.record(float(index), 0.25, 1, decode_only=index % 2 == 0)
    assert ring.busy_s == pytest.approx(5.0)


def test_late_report_does_not_shorten_the_next_step() -> None:
    """Three steps of 10 ms; the report of the second is 8 ms late."""
    ring = StepRing()
    for end_s in (100.010, 100.028, 100.030):
        ring.record(end_s, 0.010, 1, decode_only=True)
    assert ring.busy_s == pytest.approx(0.030)


def test_no_time_is_counted_as_busy_twice() -> None:
    ring = StepRing()
    ring.record(100.0, 0.010, 1, decode_only=True)
    ring.record(100.005, 0.010, 1, decode_only=True)
    assert ring.busy_s == pytest.approx(0.015)
    ring.record(200.0, 0.010, 1, decode_only=True)
    ring.record(200.005, 0.010, 1, decode_only=True)
    assert ring.busy_s == pytest.approx(0.030), "nor after a pause"
    ring.record(50.0, 0.010, 1, decode_only=True)
    assert ring.busy_s == pytest.approx(0.040), "a clock that is set back stops nothing"


def test_prefill_time_is_the_step_without_its_decode_part() -> None:
    prefill = Prefill()
    assert prefill.document() == {"tokens": 0, "seconds": 0.0}
    prefill.record(100, 0.5, 0.1)
    prefill.record(50, 0.2, 0.0)
    prefill.record(10, 0.1, 0.3)
    assert prefill.document() == {"tokens": 160, "seconds": pytest.approx(0.6)}


def test_rate_of_prefill_is_unknown_until_enough_tokens() -> None:
    prefill = Prefill()
    assert prefill.tokens_per_s() is None
    prefill.record(200, 0.2, 0.0)
    assert prefill.tokens_per_s() is None
    prefill.record(200, 0.2, 0.0)
    assert prefill.tokens_per_s() == pytest.approx(1000)


def test_rate_of_prefill_ignores_a_compilation() -> None:
    prefill = Prefill()
    prefill.record(200, 30.0, 0.0)
    for _ in range(5):
        prefill.record(200, 0.2, 0.0)
    assert prefill.tokens_per_s() == pytest.approx(1000)


def test_rate_of_prefill_follows_recent_steps() -> None:
    prefill = Prefill()
    for seconds in (1.0, 0.1):
        for _ in range(PREFILL_STEPS):
            prefill.record(100, seconds, 0.0)
    assert prefill.tokens_per_s() == pytest.approx(1000)
    assert prefill.tokens == 2 * PREFILL_STEPS * 100


@given(
    st.lists(st.tuples(st.floats(0.0001, 0.5), st.integers(1, 256), st.booleans()), max_size=60),
    st.floats(0, 20),
)
def test_window_agrees_with_a_plain_list(
    steps: list[tuple[float, int, bool]], before_the_end_s: float
) -> None:
    ring, now = StepRing(), 1000.0
    plain: list[tuple[float, int]] = []
    for elapsed_s, batch, decode_only in steps:
        now += elapsed_s
        ring.record(now, elapsed_s, batch, decode_only=decode_only)
        plain.append((now, batch if decode_only else 0))
    start = now - before_the_end_s
    of_any_kind = [batch for reported, batch in plain if reported > start]
    expected = [batch for batch in of_any_kind if batch]
    found = ring.since(start)
    assert (found.steps, ring.count_since(start)) == (len(expected), len(of_any_kind))
    if expected:
        assert found.largest == max(expected)
        assert found.mean == pytest.approx(sum(expected) / len(expected))


def test_lookups_keep_their_order_when_the_clock_is_set_back() -> None:
    cache = PrefixCache()
    cache.record(10.0, 100, 0)
    cache.record(5.0, 50, 32)
    assert cache.before(9.9) == (0, 0)
    assert cache.before(10.1) == (150, 32)


def test_counts_of_dropped_reports_are_unknown_and_the_totals_are_not() -> None:
    cache = PrefixCache(capacity=4)
    for index in range(1, 101):
        cache.record(float(index), 10, 1)
    assert cache.before(1.0) is None
    assert cache.before(99.0) == (980, 98)
    assert cache.now == (1000, 100)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 9), st.integers(0, 9)), max_size=40))
def test_counts_agree_with_a_plain_list(reports: list[tuple[float, int, int]]) -> None:
    cache, now_s = PrefixCache(capacity=8), 100.0
    plain: list[tuple[float, int, int]] = []
    for pause_s, queries, hits in reports:
        now_s += pause_s
        cache.record(now_s, queries, hits)
        plain.append((now_s, queries, hits))
    for at_s in (0.0, *(at_s for at_s, _, _ in plain), now_s + 1):
        found = cache.before(at_s)
        earlier = [entry for entry in plain if entry[0] < at_s]
        if found is None:
            assert len(plain) > 8, "nothing was dropped"
        else:
            assert found == (sum(q for _, q, _ in earlier), sum(h for _, _, h in earlier))
    assert cache.before(now_s + 1) == pytest.approx(cache.now)

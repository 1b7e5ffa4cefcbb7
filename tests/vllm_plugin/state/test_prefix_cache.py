"""Lookups in the prefix cache: totals, and totals as they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_plugin.state.prefix_cache import PrefixCache


def test_clock_that_is_set_back_keeps_the_order() -> None:
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

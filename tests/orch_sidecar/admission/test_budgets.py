"""Room in the KV cache, and the engine's time for prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.budgets import (
    KV_FULL,
    LEAST,
    LONGEST_STALL_S,
    MOST_UNSEEN,
    QUIET_S,
    RECOVERY_S,
    UNSEEN_S,
    KvBudget,
    PrefillBudget,
    stall_s,
)


def cache_of(total: int, usage: float = 0.0, preemptions: int = 0) -> KvBudget:
    kv = KvBudget()
    kv.reported(total, usage, preemptions, 0.0)
    return kv


def limit(kv: KvBudget, now: float) -> int:
    """The largest output that fits into what is now an empty cache."""
    fitting = [tokens for tokens in range(0, 1001, 5) if kv.fits(0, tokens, now)]
    return fitting[-1]


def test_everything_fits_while_the_size_of_the_cache_is_not_known() -> None:
    assert KvBudget().fits(10**9, 10**9, 0.0)


def test_a_request_fits_if_all_fit_to_their_ends() -> None:
    kv = cache_of(1000, usage=KV_FULL)
    kv.granted(300, 200, 0.0)
    assert kv.committed == 500
    assert kv.fits(300, 200, 1.0)
    assert not kv.fits(300, 201, 1.0)
    kv.released(300, 200)
    assert kv.fits(500, 500, 1.0)


def test_prompts_that_share_a_prefix_are_counted_as_the_cache_has_them() -> None:
    kv = cache_of(1000)
    for _ in range(4):
        kv.granted(240, 10, 0.0)
    kv.reported(1000, 0.3, 0, 1.0)
    assert kv.fits(240, 10, 1.0), "1210 tokens, but 240 of each are the same"
    assert kv.fits(650, 10, 1.0)
    assert not kv.fits(651, 10, 1.0), "300 + 4 * 10 + 651 + 10"


def test_prompts_count_in_full_until_the_cache_was_reported_with_them() -> None:
    kv = cache_of(1000, usage=0.3)
    kv.granted(600, 0, 1.0)
    kv.granted(300, 0, 1.0)
    assert not kv.fits(200, 0, 1.0)
    kv.reported(1000, 0.4, 0, 2.0)
    assert kv.fits(200, 0, 2.0)


def test_a_report_just_after_a_grant_need_not_have_it() -> None:
    kv = cache_of(1000, usage=0.3)
    kv.granted(900, 0, 1.0)
    kv.reported(1000, 0.3, 0, 1.0 + UNSEEN_S / 2)
    assert not kv.fits(200, 0, 1.0 + UNSEEN_S / 2)
    kv.reported(1000, 0.4, 0, 1.0 + 2 * UNSEEN_S)
    assert kv.fits(200, 0, 1.0 + 2 * UNSEEN_S)


def test_prompts_that_the_engine_has_yet_to_read_are_not_in_the_usage() -> None:
    """Four of five wait in the engine, while it reads the first for a second."""
    kv = cache_of(1000)
    for number in range(5):
        kv.granted(100, 50, number * UNSEEN_S)
    kv.reported(1000, 0.1, 0, 1.0, unread=4)
    assert not kv.fits(251, 0, 1.0), "750 of 1000 are taken"
    kv.reported(1000, 0.4, 0, 2.0, unread=1)
    assert kv.fits(250, 0, 2.0)
    assert not kv.fits(251, 0, 2.0), "400 in the cache, 100 to be read, 250 to be generated"
    kv.reported(1000, 0.3, 0, 3.0)
    assert kv.fits(450, 0, 3.0), "two of them were the same"


def test_what_has_to_be_read_is_bounded() -> None:
    kv = cache_of(10**9)
    for _ in range(3 * MOST_UNSEEN):
        kv.granted(1, 0, 0.0)
    for _ in range(3 * MOST_UNSEEN - 10):
        kv.released(1, 0)
    kv.reported(20 + MOST_UNSEEN, 0.0, 0, 0.0)
    assert kv.fits(20, None, 0.0)
    assert not kv.fits(21, None, 0.0)


def test_grants_that_never_pause_are_seen_in_the_end() -> None:
    """All of them share a prefix of 100 tokens; ten come and ten go in the time unseen."""
    kv, now = cache_of(3000, usage=0.1), 0.0
    for number in range(1000):
        now = number * UNSEEN_S / 10
        assert kv.fits(100, 0, now), number
        kv.granted(100, 0, now)
        if number >= 30:
            kv.released(100, 0)
        if number % 3 == 0:
            kv.reported(3000, 0.1, 0, now)
    assert kv.committed == 3000, "more than that would not surely fit"


def test_a_nearly_full_cache_takes_only_what_surely_fits() -> None:
    kv = cache_of(1000)
    kv.granted(900, 90, 0.0)
    kv.reported(1000, KV_FULL, 0, 1.0)
    assert not kv.fits(20, 0, 1.0)
    assert kv.fits(5, 5, 1.0)


def test_an_output_that_nobody_knows_counts_as_none_of_the_cache_as_it_is() -> None:
    kv = cache_of(1000, usage=0.5)
    assert kv.fits(500, None, 1.0)
    assert not kv.fits(501, None, 1.0)
    kv.reported(1000, KV_FULL, 0, 1.0)
    assert not kv.fits(1, None, 1.0)


def test_preemptions_before_the_first_report_say_nothing() -> None:
    kv = cache_of(1000, preemptions=7)
    assert limit(kv, 0.0) == 1000
    assert kv.preemptions == 0


def test_a_preemption_shrinks_the_limit_by_a_quarter_and_it_comes_back() -> None:
    kv = cache_of(1000)
    kv.reported(1000, 0.0, 2, 10.0)
    assert kv.preemptions == 2
    assert limit(kv, 10.0) == 750
    assert limit(kv, 10.0 + RECOVERY_S / 2) == 875
    assert limit(kv, 10.0 + RECOVERY_S) == 1000
    assert limit(kv, 1e6) == 1000


def test_each_preemption_shrinks_what_is_left_down_to_a_least() -> None:
    kv = cache_of(1000)
    kv.reported(1000, 0.0, 1, 10.0)
    kv.reported(1000, 0.0, 2, 10.0)
    assert limit(kv, 10.0) == 560
    for count in range(3, 20):
        kv.reported(1000, 0.0, count, 10.0)
    assert limit(kv, 10.0) == 1000 * LEAST


def test_reports_without_another_preemption_shrink_nothing() -> None:
    kv = cache_of(1000)
    for _ in range(3):
        kv.reported(1000, 0.0, 1, 10.0)
    assert limit(kv, 10.0) == 750


def test_just_after_a_preemption_only_what_surely_fits_goes() -> None:
    kv = cache_of(1000)
    kv.granted(700, 0, 0.0)
    kv.reported(1000, 0.1, 1, 10.0)
    assert not kv.fits(60, 0, 10.0 + QUIET_S / 2)
    assert kv.fits(60, 0, 10.0 + QUIET_S)


def test_another_engine_begins_with_an_empty_cache() -> None:
    kv = cache_of(1000)
    kv.granted(900, 90, 9.99)
    kv.reported(1000, 1.0, 5, 10.0)
    kv.begin_epoch()
    kv.reported(1000, 0.0, 0, 10.0)
    assert (kv.committed, limit(kv, 10.0)) == (0, 1000)
    kv.granted(600, 600, 10.0)
    kv.reported(1000, 0.0, 0, 11.0)
    assert kv.fits(400, 0, 11.0), "nothing is left of what nobody had seen"


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 5000)), max_size=40))
def test_what_was_granted_is_given_back_whole(leases: list[tuple[int, float]]) -> None:
    kv = cache_of(1000)
    for prompt, output in leases:
        kv.granted(prompt, output, 0.0)
    for prompt, output in reversed(leases):
        kv.released(prompt, output)
    assert kv.committed == pytest.approx(0, abs=1e-6)


# Prompts.


def test_one_prompt_at_a_time_while_the_rate_is_not_known() -> None:
    prefill = PrefillBudget()
    assert prefill.fits(10**6, 0.5, 0.0)
    prefill.granted(1, 0.0)
    assert not prefill.fits(1, 0.5, 1000.0)
    assert prefill.fits_at(1, 0.5, 1000.0) is None
    prefill.settled()
    assert prefill.fits(1, 0.5, 1000.0)


def test_prompts_fit_as_far_as_they_are_read_within_the_stall() -> None:
    prefill = PrefillBudget()
    prefill.tokens_per_s = 1000.0
    prefill.granted(200, 0.0)
    assert prefill.fits(300, 0.5, 0.0)
    assert not prefill.fits(301, 0.5, 0.0)
    assert prefill.fits(301, 0.5, 0.001)


def test_one_long_prompt_always_fits_alone() -> None:
    prefill = PrefillBudget()
    prefill.tokens_per_s = 1000.0
    assert prefill.fits(10**6, 0.5, 0.0)
    prefill.granted(100, 0.0)
    assert not prefill.fits(10**6, 0.5, 0.099)
    assert prefill.fits(10**6, 0.5, 0.1)


def test_it_tells_when_a_prompt_will_fit() -> None:
    prefill = PrefillBudget()
    prefill.tokens_per_s = 1000.0
    prefill.granted(700, 10.0)
    assert prefill.fits_at(300, 0.5, 10.0) == 10.5
    assert prefill.fits_at(300, 0.5, 10.2) == 10.5
    assert prefill.fits_at(10**6, 0.5, 10.0) == 10.7, "alone"
    assert prefill.fits_at(300, 0.5, 11.0) == 11.0


def test_what_ends_with_a_known_rate_says_nothing_of_other_prompts() -> None:
    prefill = PrefillBudget()
    prefill.tokens_per_s = 1000.0
    prefill.granted(700, 0.0)
    prefill.settled()
    assert not prefill.fits(300, 0.5, 0.0)


def test_another_engine_has_no_prompts_to_read() -> None:
    prefill = PrefillBudget()
    prefill.granted(700, 0.0)
    prefill.begin_epoch()
    assert prefill.fits(300, 0.5, 0.0)


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 3)), max_size=20),
    st.integers(0, 5000),
    st.floats(1, 10_000),
)
def test_a_prompt_fits_when_it_was_told_to(
    granted: list[tuple[int, float]], tokens: int, per_second: float
) -> None:
    prefill, now = PrefillBudget(), 0.0
    prefill.tokens_per_s = per_second
    for prompt, passed_s in granted:
        prefill.granted(prompt, now)
        now += passed_s
    at = prefill.fits_at(tokens, 0.5, now)
    assert at is not None
    assert at >= now
    assert prefill.fits(tokens, 0.5, at + 1e-6)


@pytest.mark.parametrize(
    ("ttft_ms", "expected_s"), [(None, LONGEST_STALL_S), (400.0, 0.1), (60_000.0, LONGEST_STALL_S)]
)
def test_stall_is_a_share_of_the_interactive_slo(ttft_ms: float | None, expected_s: float) -> None:
    assert stall_s(ttft_ms) == expected_s

"""How preemptions, and usage beyond the estimates, lower what may be admitted to the KV cache."""

from __future__ import annotations

from orch_sidecar.admission.constraints.kv_cache import BACK_OFF_S, RECOVERY_S, SETTLING_S
from tests.orch_sidecar.admission.constraints.kv_budgets import (
    LeasedBudget,
    budget_of,
    limit,
    need,
)
from tests.orch_sidecar.admission.examples import kv_of

SEEN = 9.0 + SETTLING_S  # when it has been so for long enough


def test_preemptions_before_the_first_report_change_nothing() -> None:
    kv = budget_of(1000, preemptions=7)
    assert limit(kv, 0.0) == 1000
    assert kv.preemptions == 0


def test_a_preemption_shrinks_the_limit_by_a_quarter_and_it_comes_back() -> None:
    kv = budget_of(1000)
    kv.reports(kv_of(1000), 0.0, 2, 10.0)
    assert kv.preemptions == 2
    assert limit(kv, 10.0) == 750
    assert limit(kv, 10.0 + RECOVERY_S / 2) == 875
    assert limit(kv, 10.0 + RECOVERY_S) == 1000
    assert limit(kv, 1e6) == 1000


def test_preemptions_of_one_moment_shrink_it_once() -> None:
    kv = budget_of(1000)
    for count in range(1, 20):
        kv.reports(kv_of(1000), 0.0, count, 10.0 + count / 100)
    assert limit(kv, 10.2) == 750
    assert kv.preemptions == 19


def test_each_moment_with_preemptions_shrinks_what_is_left() -> None:
    kv = budget_of(1000)
    for count in range(1, 21):
        kv.reports(kv_of(1000), 0.0, count, 10.0 + count * BACK_OFF_S)
    assert limit(kv, 10.0 + 20 * BACK_OFF_S) < 100
    assert limit(kv, 10.0 + 20 * BACK_OFF_S + RECOVERY_S) == 1000


def test_reports_without_another_preemption_shrink_nothing() -> None:
    kv = budget_of(1000)
    for _ in range(3):
        kv.reports(kv_of(1000), 0.0, 1, 10.0)
    assert limit(kv, 10.0) == 750


def test_just_after_a_preemption_only_what_surely_fits_goes() -> None:
    kv = budget_of(1000)
    kv.grant(need(700, 0), 0.0)
    kv.reports(kv_of(1000), 0.1, 1, 10.0)
    assert not kv.fits(need(60, 0), 10.0 + BACK_OFF_S / 2)
    assert kv.fits(need(60, 0), 10.0 + BACK_OFF_S)


def taking(
    usage: float,
    *counted: int,
    unbegun: int = 0,
    foreign: int = 0,
    until: float = 10.0,
) -> LeasedBudget:
    """A cache of 1000 blocks that is so full from 9 s on. `counted`: for each lease; none: 100."""
    kv = budget_of(1000)
    for each in counted or (100,):
        kv.grant(need(each, 0), 0.0)
    at = 9.0
    while at <= until:
        kv.reports(kv_of(1000), usage, 0, at, unbegun=unbegun, foreign=foreign)
        at += SETTLING_S / 2
    return kv


def test_what_is_taken_beyond_the_counted_lowers_what_may_be_counted() -> None:
    kv = taking(0.7)
    assert kv.fits(need(42, 0), SEEN)
    assert not kv.fits(need(43, 0), SEEN), "143 of 1000, which are 7 times that"


def test_what_may_be_counted_comes_back_when_no_more_is_taken() -> None:
    kv = taking(0.7)
    kv.reports(kv_of(1000), 0.1, 0, SEEN + RECOVERY_S)
    assert limit(kv, SEEN + RECOVERY_S) == 900


def test_leases_without_a_block_are_not_what_is_taken() -> None:
    kv = taking(0.7, 100, 100, unbegun=1)
    assert not kv.fits(need(0, 0), SEEN), "200 of 1000, of which no more than 143 fit"
    kv.released(need(100, 0))
    kv.released(need(100, 0))
    assert limit(kv, SEEN) == 140


def test_long_prompt_that_is_read_before_short_ones_is_not_more_than_was_counted() -> None:
    short = [10] * 9
    assert limit(taking(0.6, 700, *short, unbegun=9), SEEN) == 400, "beside the 600 that are taken"


def test_sequences_of_one_lease_that_are_not_begun_are_counted_one_by_one() -> None:
    kv = budget_of(1000)
    kv.grant(need(200, 0), 0.0, sequences=4)
    for at in (9.0, 9.5, 10.0):
        kv.reports(kv_of(1000), 0.7, 0, at, unbegun=2)
    assert not kv.fits(need(0, 0), SEEN), "two of four have begun: 100 of 700 that are taken"


def test_a_cache_that_is_far_from_full_shows_nothing() -> None:
    assert limit(taking(0.4), SEEN) == 900


def test_what_is_taken_by_others_shows_nothing() -> None:
    assert limit(taking(0.7, foreign=1), SEEN) == 900


def test_what_is_taken_for_a_moment_shows_nothing() -> None:
    """Blocks of leases that were given back are in the usage of the next reports."""
    kv = taking(0.7, until=SEEN - SETTLING_S / 2)
    kv.reports(kv_of(1000), 0.1, 0, SEEN)
    kv.reports(kv_of(1000), 0.7, 0, SEEN + 0.1)
    assert limit(kv, SEEN + 0.1) == 900


def test_answers_of_unknown_length_show_nothing() -> None:
    kv = budget_of(1000)
    kv.grant(need(100, None), 0.0)
    for at in (8.0, 9.0, 10.0):
        kv.reports(kv_of(1000), 0.7, 0, at)
    assert kv.fits(need(300, 0), 10.0)

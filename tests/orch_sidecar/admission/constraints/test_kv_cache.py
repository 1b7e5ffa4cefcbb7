"""Room in the KV cache: what requests need of it, and which fit.

How preemptions, and usage beyond the estimates, lower what may be admitted to the KV cache.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.constraints.kv_cache import (
    BACK_OFF_S,
    FULL_USAGE,
    RECOVERY_S,
    SETTLING_S,
    UNSEEN_S,
    KvBudget,
)
from orch_sidecar.admission.ledger import MAX_UNSEEN_PROMPTS, Ledger
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.types import EngineReport, KvNeed
from tests.orch_sidecar.admission.examples import bulk, kv_of
from vllm_plugin.contracts.kv_cache import KvCache, KvGroup


class LeasedBudget(KvBudget):
    """A KV budget whose requests have leases in a ledger of its own."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        super().__init__(self.ledger, ServiceTimes(self.ledger))

    def begin_epoch(self) -> None:
        self.ledger.begin_epoch("e2")
        super().begin_epoch()

    def grant(self, need: KvNeed, now: float, sequences: int = 1) -> None:
        request = bulk(sequences)
        request.kv = need
        lease_id = f"lease {self.ledger.grants}"
        self.granted(self.ledger.grant(lease_id, request, now), request, now)

    def released(self, need: KvNeed) -> None:
        """Releases the last lease with this need."""
        leases = reversed(list(self.ledger.all()))
        self.ledger.release(next(lease.id for lease in leases if lease.kv == need), 0.0)

    def reports(
        self,
        cache: KvCache,
        usage: float,
        preemptions: int,
        now: float,
        *,
        unread: int = 0,
        unbegun: int = 0,
        foreign: int = 0,
    ) -> None:
        report = EngineReport(
            "e1",
            8,
            foreign,
            kv=cache,
            kv_usage=usage,
            preemptions_total=preemptions,
            prefilling=unread,
            waiting=unbegun,
        )
        self.reported(report, now)


def budget_of(blocks: int, usage: float = 0.0, preemptions: int = 0) -> LeasedBudget:
    kv = LeasedBudget()
    kv.reports(kv_of(blocks), usage, preemptions, 0.0)
    return kv


def need(prompt: int, output: int | None = 0, reading: int = 0) -> KvNeed:
    return KvNeed(prompt, reading, output)


def limit(kv: KvBudget, now: float) -> int:
    """The largest output that fits into what is now an empty cache."""
    fitting = [tokens for tokens in range(0, 1001, 5) if kv.fits(need(0, tokens), now)]
    return fitting[-1]


# As of Gemma 3: five of six groups look 1024 tokens back, and a step prefills 2048.
SLIDING = KvGroup(16, 65, 193, count=5)
GEMMA = KvCache(6000, (KvGroup(16), SLIDING))


def test_everything_fits_while_the_size_of_the_cache_is_not_known() -> None:
    assert LeasedBudget().fits(need(10**9, 10**9), 0.0)


def test_a_request_fits_if_all_fit_to_their_ends() -> None:
    kv = budget_of(1000, usage=FULL_USAGE)
    kv.grant(need(300, 200), 0.0)
    assert kv.ledger.kv_committed == 500
    assert kv.fits(need(300, 200), 1.0)
    assert not kv.fits(need(300, 201), 1.0)
    kv.released(need(300, 200))
    assert kv.fits(need(500, 500), 1.0)


def test_prompts_that_share_a_prefix_are_counted_as_the_cache_has_them() -> None:
    kv = budget_of(1000)
    for _ in range(4):
        kv.grant(need(240, 10), 0.0)
    kv.reports(kv_of(1000), 0.3, 0, 1.0)
    assert kv.fits(need(240, 10), 1.0), "1210 tokens, but 240 of each are the same"
    assert kv.fits(need(650, 10), 1.0)
    assert not kv.fits(need(651, 10), 1.0), "300 + 4 * 10 + 651 + 10"


def test_prompt_starts_beside_others_where_the_blocks_that_the_engine_keeps_stay_free() -> None:
    kv, cache = LeasedBudget(), KvCache(1000, (KvGroup(1),), blocks_kept=100)
    kv.reports(cache, 0.0, 0, 0.0)
    assert kv.fits(need(950, 50), 0.0), "alone"
    kv.grant(need(300, 0), 0.0)
    assert not kv.fits(need(601, 0), 1.0), "not yet in the usage"
    kv.reports(cache, 0.3, 0, 1.0)
    assert kv.fits(need(600, 100), 1.0), "what is generated may take them"
    assert not kv.fits(need(601, 0), 1.0)


def test_a_report_just_after_a_grant_need_not_have_it() -> None:
    kv = budget_of(1000, usage=0.3)
    kv.grant(need(900, 0), 1.0)
    kv.reports(kv_of(1000), 0.3, 0, 1.0 + UNSEEN_S / 2)
    assert not kv.fits(need(200, 0), 1.0 + UNSEEN_S / 2)
    kv.reports(kv_of(1000), 0.4, 0, 1.0 + 2 * UNSEEN_S)
    assert kv.fits(need(200, 0), 1.0 + 2 * UNSEEN_S)


def test_prompts_that_the_engine_has_yet_to_read_are_not_in_the_usage() -> None:
    """Four of five wait in the engine, while it reads the first for a second."""
    kv = budget_of(1000)
    for number in range(5):
        kv.grant(need(100, 50), number * UNSEEN_S)
    kv.reports(kv_of(1000), 0.1, 0, 1.0, unread=4)
    assert not kv.fits(need(251, 0), 1.0), "750 of 1000 are taken"
    kv.reports(kv_of(1000), 0.4, 0, 2.0, unread=1)
    assert kv.fits(need(250, 0), 2.0)
    assert not kv.fits(need(251, 0), 2.0), "400 in the cache, 100 to be read, 250 to be generated"
    kv.reports(kv_of(1000), 0.3, 0, 3.0)
    assert kv.fits(need(450, 0), 3.0), "two of them were the same"


def test_what_has_to_be_read_is_bounded() -> None:
    kv = budget_of(10**9)
    for _ in range(3 * MAX_UNSEEN_PROMPTS):
        kv.grant(need(1, 0), 0.0)
    for _ in range(3 * MAX_UNSEEN_PROMPTS - 10):
        kv.released(need(1, 0))
    kv.reports(kv_of(20 + MAX_UNSEEN_PROMPTS), 0.0, 0, 0.0)
    assert kv.fits(need(20, None), 0.0)
    assert not kv.fits(need(21, None), 0.0)


def test_grants_that_never_pause_are_seen_in_the_end() -> None:
    """All of them share a prefix of 100 tokens; ten come and ten go in the time unseen."""
    kv, now = budget_of(3000, usage=0.1), 0.0
    for number in range(1000):
        now = number * UNSEEN_S / 10
        assert kv.fits(need(100, 0), now), number
        kv.grant(need(100, 0), now)
        if number >= 30:
            kv.released(need(100, 0))
        if number % 3 == 0:
            kv.reports(kv_of(3000), 0.1, 0, now)
    assert kv.ledger.kv_committed == 3000, "more than that would not surely fit"


def test_a_nearly_full_cache_takes_only_what_surely_fits() -> None:
    kv = budget_of(1000)
    kv.grant(need(900, 90), 0.0)
    kv.reports(kv_of(1000), FULL_USAGE, 0, 1.0)
    assert not kv.fits(need(20, 0), 1.0)
    assert kv.fits(need(5, 5), 1.0)


def test_unknown_output_counts_as_no_blocks_of_the_current_cache() -> None:
    kv = budget_of(1000, usage=0.5)
    assert kv.fits(need(500, None), 1.0)
    assert not kv.fits(need(501, None), 1.0)
    kv.reports(kv_of(1000), FULL_USAGE, 0, 1.0)
    assert not kv.fits(need(1, None), 1.0)


def test_another_engine_begins_with_an_empty_cache() -> None:
    kv = budget_of(1000)
    kv.grant(need(900, 90), 9.99)
    kv.reports(kv_of(1000), 1.0, 5, 10.0)
    kv.begin_epoch()
    kv.reports(kv_of(1000), 0.0, 0, 10.0)
    assert (kv.ledger.kv_committed, limit(kv, 10.0)) == (0, 1000)
    kv.grant(need(600, 600), 10.0)
    kv.reports(kv_of(1000), 0.0, 0, 11.0)
    assert kv.fits(need(400, 0), 11.0), "no unseen blocks are left"


@given(st.lists(st.tuples(st.integers(0, 5000), st.none() | st.integers(0, 5000)), max_size=40))
def test_what_was_granted_is_given_back_whole(leases: list[tuple[int, int | None]]) -> None:
    kv = budget_of(1000)
    for prompt, output in leases:
        kv.grant(need(prompt, output), 0.0)
    for prompt, output in reversed(leases):
        kv.released(need(prompt, output))
    assert kv.ledger.kv_committed == 0


def test_a_group_may_take_blocks_besides_those_of_the_tokens() -> None:
    states = KvCache(100, (KvGroup(2048, 1, blocks_extra=3, count=2),))
    assert [states.blocks_of(tokens) for tokens in (1, 2000, 2049)] == [8, 8, 8]


def test_short_sequences_fill_a_cache_of_many_groups_early() -> None:
    kv = LeasedBudget()
    kv.reports(GEMMA, 0.0, 0, 0.0)
    each, granted = kv.need(500, 0, 1), 0
    while kv.fits(each, 0.0):
        kv.grant(each, 0.0)
        granted += 1
    assert granted == 6000 // 192, "187 by its tokens alone"


def test_what_prompts_take_while_they_are_read_is_kept_free_until_then() -> None:
    kv = LeasedBudget()
    cache = KvCache(1000, (KvGroup(1), KvGroup(1, 100, 400)))
    kv.reports(cache, 0.0, 0, 0.0)
    kv.grant(need(100, 0, reading=200), 0.0)
    kv.grant(need(100, 0, reading=50), 0.0)
    assert kv.fits(need(550, 0), 0.0)
    assert not kv.fits(need(551, 0), 0.0)
    assert not kv.fits(need(550, 0, reading=1), 0.0)
    assert kv.fits(need(500, 0, reading=200), 0.0), "prompts of a step share its tokens"
    kv.reports(cache, 0.2, 0, 1.0, unread=1)
    assert kv.fits(need(750, 0), 1.0), "the first was read"
    kv.reports(cache, 0.2, 0, 2.0)
    assert kv.fits(need(800, 0), 2.0)


def test_what_a_window_gives_back_it_takes_again() -> None:
    """At the end of a block it looks back at one less than at its beginning."""
    kv = budget_of(1000)
    kv.grant(KvNeed(700, 0, 10, swing=50), 0.0)
    kv.reports(kv_of(1000), 0.65, 0, 1.0)
    assert kv.fits(need(290), 1.0), "it surely fits"
    assert not kv.fits(need(291), 1.0), "650 + 10 + 50 + 291"
    kv.reports(kv_of(1000), 0.55, 0, 1.0)
    assert kv.fits(need(390), 1.0)
    assert not kv.fits(need(391), 1.0)


SEEN = 9.0 + SETTLING_S  # when it has been so for long enough


def test_preemptions_before_the_first_report_change_nothing() -> None:
    kv = budget_of(1000, preemptions=7)
    assert limit(kv, 0.0) == 1000


def test_a_preemption_shrinks_the_limit_by_a_quarter_and_it_comes_back() -> None:
    kv = budget_of(1000)
    kv.reports(kv_of(1000), 0.0, 2, 10.0)
    assert limit(kv, 10.0) == 750
    assert limit(kv, 10.0 + RECOVERY_S / 2) == 875
    assert limit(kv, 10.0 + RECOVERY_S) == 1000
    assert limit(kv, 1e6) == 1000


def test_preemptions_of_one_moment_shrink_it_once() -> None:
    kv = budget_of(1000)
    for count in range(1, 20):
        kv.reports(kv_of(1000), 0.0, count, 10.0 + count / 100)
    assert limit(kv, 10.2) == 750


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

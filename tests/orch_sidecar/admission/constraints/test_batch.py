"""Batches from SLO and step time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.constraints.batch import (
    EXTRAPOLATION_FACTOR,
    FIRST_BATCH,
    FIT_NOISE,
    Limits,
    limits_for,
)
from orch_sidecar.admission.types import StepTime
from tests.orch_sidecar.admission.examples import (
    BULK,
    STEP_TIME,
    bulk_only,
    class_rules,
    rules,
)
from vllm_plugin.contracts.profile import AdmissionRules, BatchBounds


def of_slos(interactive_ms: float | None, bulk_ms: float | None) -> AdmissionRules:
    """SLOs of the time per token, with the bounds of the cloud profile."""
    return rules(
        class_rules(tpot_p95_ms=interactive_ms, batch=BatchBounds(least=4, most=16)),
        class_rules(tpot_p95_ms=bulk_ms, batch=BatchBounds(least=16, most=128)),
    )


def test_of_an_unknown_engine_the_first_batch_is_small() -> None:
    limits = limits_for(of_slos(20.0, 40.0), 64, None)
    assert (limits.interactive, limits.bulk, limits.mixed) == (8, 16, 16)
    assert not limits.measured


def test_the_batch_doubles_with_what_the_engine_was_seen_with() -> None:
    unbound = rules(class_rules(tpot_p95_ms=500.0, batch=BatchBounds(least=4)))
    seen = [limits_for(unbound, 64, None, batch).interactive for batch in (0, 4, 8, 16, 32)]
    assert seen == [8, 8, 16, 32, 64]


def test_without_a_bound_in_the_profile_all_slots_are_used_that_keep_the_slo() -> None:
    unbound = rules(class_rules(tpot_p95_ms=100.0, batch=BatchBounds(least=4)))
    assert limits_for(unbound, 64, STEP_TIME).interactive == 64
    assert limits_for(unbound, 128, STEP_TIME).interactive == 90


def test_what_traffic_adds_to_the_time_per_token_lowers_the_batch() -> None:
    slowed = replace(STEP_TIME, traffic=2.0)
    assert limits_for(of_slos(40.0, 80.0), 64, slowed).interactive == 10
    assert limits_for(of_slos(40.0, 80.0), 64, slowed).bulk == 30


def test_what_bulk_prompts_add_does_not_lower_the_batch() -> None:
    """A half of the time goes to prompts: of bulk requests, or of interactive ones."""
    slowed = replace(STEP_TIME, traffic=2.0, prompt_share=0.5)
    of_rules = of_slos(24.0, 48.0)
    assert limits_for(of_rules, 64, slowed, bulk_prompts=1.0).interactive == 14
    assert limits_for(of_rules, 64, slowed, bulk_prompts=0.0).interactive == 4, "its least"


def test_a_change_within_the_dead_band_is_none() -> None:
    of_rules = rules(class_rules(tpot_p95_ms=50.0, batch=BatchBounds(least=4)))
    before = limits_for(of_rules, 64, STEP_TIME)
    assert before.interactive == 40
    for traffic, expected in ((1.05, 40), (1.2, 31)):
        slowed = replace(STEP_TIME, traffic=traffic)
        assert limits_for(of_rules, 64, slowed, before=before).interactive == expected


def test_the_dead_band_does_not_keep_the_last_slots_free() -> None:
    of_rules = rules(class_rules(tpot_p95_ms=80.0, batch=BatchBounds(least=4)))
    before = limits_for(of_rules, 64, replace(STEP_TIME, traffic=1.15))
    assert before.interactive == 59
    assert limits_for(of_rules, 64, STEP_TIME, before=before).interactive == 64


def test_slo_per_token_lets_a_step_of_several_tokens_take_as_much_longer() -> None:
    """Speculative decoding; a first token waits for whole steps all the same."""
    drafting = StepTime(10.0, 1.0, 1.0, 64, tokens=2.0)
    assert limits_for(of_slos(10.0, 20.0), 64, drafting).bulk == 30
    rules_of_first_token = rules(class_rules(ttft_p95_ms=100.0), class_rules())
    one, two = (limits_for(rules_of_first_token, 64, fit) for fit in (STEP_TIME, drafting))
    assert one.mixed == two.mixed < 64


def test_bulk_beside_interactive_requests_keeps_their_slo() -> None:
    assert limits_for(of_slos(30.0, 40.0), 64, STEP_TIME).mixed == 20
    assert limits_for(of_slos(50.0, 40.0), 64, STEP_TIME).mixed == 30


def test_bulk_beside_interactive_requests_has_its_least_batch_whatever_their_slo() -> None:
    assert limits_for(of_slos(12.0, 40.0), 64, STEP_TIME).mixed == 16


def test_without_an_slo_the_bound_is_the_profiles() -> None:
    assert limits_for(of_slos(None, None), 1024, STEP_TIME).batch(BULK) == 128


def test_a_fit_is_not_believed_far_beyond_what_it_was_made_from() -> None:
    measured_to_8 = StepTime(10.0, 1.0, 1.0, 8)
    assert limits_for(of_slos(None, 20.0), 64, measured_to_8).bulk == 16, "least of the profile"
    assert limits_for(of_slos(None, 40.0), 64, measured_to_8).bulk == 16, "twice what it is from"
    assert limits_for(of_slos(None, 40.0), 64, measured_to_8, 16).bulk == 30
    assert limits_for(of_slos(None, 40.0), 64, StepTime(10.0, 1.0, 1.0, 20)).bulk == 30


def test_without_interactive_rules_all_is_as_for_bulk() -> None:
    limits = limits_for(bulk_only(class_rules(tpot_p95_ms=40.0)), 64, STEP_TIME)
    assert (limits.interactive, limits.bulk, limits.mixed) == (30, 30, 30)


def test_before_the_engine_has_reported_there_is_nothing_to_give() -> None:
    limits = limits_for(of_slos(20.0, 40.0), 0, None)
    assert (limits.interactive, limits.bulk, limits.mixed) == (0, 0, 0)


STEP_TIMES = st.builds(
    StepTime, st.floats(0.1, 50), st.floats(0.01, 5), st.floats(0.1, 1), st.integers(1, 64)
)


@given(STEP_TIMES, st.floats(0.1, 500), st.integers(1, 300), st.integers(1, 32), st.integers(0, 96))
def test_batch_keeps_the_slo_within_its_bounds_and_no_larger_one_would(
    step_time: StepTime, slo_ms: float, slots: int, least: int, more: int
) -> None:
    most = min(least + more, slots)
    by_slo = class_rules(tpot_p95_ms=slo_ms, batch=BatchBounds(least=least, most=least + more))
    batch = limits_for(rules(by_slo, by_slo), slots, step_time).bulk
    assert min(least, most) <= batch <= most
    known = max(EXTRAPOLATION_FACTOR * step_time.largest, FIRST_BATCH)
    if step_time.ms(1) > slo_ms:
        assert batch == min(most, max(least, known)), "the throughput decides"
        return
    if batch > least:
        within_ms = max(slo_ms, step_time.ms(min(least, most)))
        assert step_time.ms(batch) <= within_ms * (1 + FIT_NOISE)
    if batch < most:
        assert step_time.ms(batch + 1) > slo_ms or batch + 1 > known


@given(STEP_TIMES, st.lists(st.floats(60, 500), min_size=2, max_size=9), st.integers(1, 300))
def test_batch_grows_with_the_slo_but_for_noise(
    step_time: StepTime, slos_ms: list[float], slots: int
) -> None:
    batches = [
        limits_for(of_slos(slo_ms, slo_ms), slots, step_time).bulk for slo_ms in sorted(slos_ms)
    ]
    for smaller, larger in pairwise(batches):
        assert step_time.ms(smaller) <= (1 + FIT_NOISE) * step_time.ms(larger)


def test_slo_that_no_batch_keeps_bounds_none_and_that_is_said() -> None:
    """Fewer sequences would miss it, too: they would only generate fewer tokens."""
    limits = limits_for(of_slos(10.9, 10.9), 64, STEP_TIME)
    assert limits.out_of_reach
    assert (limits.interactive, limits.bulk, limits.mixed) == (16, 64, 64), "of the profile"
    assert not limits_for(of_slos(11.0, 11.0), 64, STEP_TIME).out_of_reach


def test_slo_of_the_first_token_bounds_the_batch_where_no_batch_keeps_that_per_token() -> None:

    def limits(ttft_ms: float) -> Limits:
        misses = class_rules(ttft_p95_ms=ttft_ms, tpot_p95_ms=10.0, batch=BatchBounds(least=4))
        return limits_for(rules(misses), 64, STEP_TIME)

    assert limits(100.0).interactive == limits(100.0).mixed == 35  # two steps of 45 ms
    assert limits(20.0).interactive == 64


def test_slo_out_of_reach_is_not_kept_again_for_a_moment_of_noise() -> None:
    missed = limits_for(of_slos(20.0, 40.0), 64, replace(STEP_TIME, traffic=2.0))
    assert missed.out_of_reach
    near = limits_for(of_slos(20.0, 40.0), 64, replace(STEP_TIME, traffic=1.8), before=missed)
    assert near.out_of_reach
    kept = limits_for(of_slos(20.0, 40.0), 64, replace(STEP_TIME, traffic=1.6), before=near)
    assert not kept.out_of_reach


def test_batch_twice_as_large_that_costs_no_more_than_noise_is_taken() -> None:
    flat = StepTime(100.0, 1.0, 1.0, 64)
    assert limits_for(of_slos(104.0, 104.0), 64, flat).interactive == 8  # 108 ms; 16 of them 116
    assert limits_for(of_slos(106.0, 106.0), 64, flat).interactive == 12  # 112 ms, and not 6

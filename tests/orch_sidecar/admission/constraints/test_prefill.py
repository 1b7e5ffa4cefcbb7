"""The engine's time for prompts.

Waves of long bulk prompts yield to interactive requests once their queue uses up the SLO.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.constraints.prefill import (
    MAX_STALL_S,
    PACE_INCREASE,
    PrefillBudget,
    stall_s,
)
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.types import EngineReport, StepTime
from tests.orch_sidecar.admission.bench import Bench
from tests.orch_sidecar.admission.examples import bulk, class_rules, interactive, reason, rules


def test_one_prompt_at_a_time_while_the_rate_is_not_known() -> None:
    prefill = PrefillBudget(Ledger())
    assert prefill.fits(10**6, 0.5, 0.0)
    prefill.granted(1, 0.0)
    assert not prefill.fits(1, 0.5, 1000.0)
    assert prefill.fits_at(1, 0.5, 1000.0) is None
    prefill.released()
    assert prefill.fits(1, 0.5, 1000.0)


def test_prompts_fit_as_far_as_they_are_read_within_the_stall() -> None:
    prefill = PrefillBudget(Ledger())
    prefill.tokens_per_s = 1000.0
    prefill.measured(None, 50.0, 1)  # what they cost others is not known
    prefill.granted(200, 0.0)
    assert prefill.fits(300, 0.5, 0.0)
    assert not prefill.fits(301, 0.5, 0.0)
    assert prefill.fits(301, 0.5, 0.001)


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 3)), max_size=20),
    st.integers(0, 5000),
    st.floats(1, 10_000),
)
def test_prompt_fits_at_the_predicted_time(
    granted: list[tuple[int, float]], tokens: int, per_second: float
) -> None:
    prefill, now = PrefillBudget(Ledger()), 0.0
    prefill.tokens_per_s = per_second
    for prompt, passed_s in granted:
        prefill.granted(prompt, now)
        now += passed_s
    at = prefill.fits_at(tokens, 0.5, now)
    assert at is not None
    assert at >= now
    assert prefill.fits(tokens, 0.5, at + 1e-6)
    assert prefill.fits_in_s(0, tokens, 0.5, now) == pytest.approx(at - now, abs=1e-6)
    later_s = prefill.fits_in_s(100, tokens, 0.5, now)
    assert 0 <= later_s - (at - now) <= 100 / per_second + 1e-6


@pytest.mark.parametrize(
    ("ttft_ms", "waits_s", "expected_s"),
    [
        (None, 9.0, MAX_STALL_S),
        (400.0, 0.0, 0.1),
        (400.0, 0.2, 0.05),
        (400.0, 0.5, 0.0),
        (60_000.0, 0.0, MAX_STALL_S),
    ],
)
def test_stall_is_a_share_of_what_the_queue_leaves_of_the_slo(
    ttft_ms: float | None, waits_s: float, expected_s: float
) -> None:
    assert stall_s(ttft_ms, waits_s) == pytest.approx(expected_s)


def test_share_of_bulk_prompts_is_that_of_late() -> None:
    ledger = Ledger()
    prefill = PrefillBudget(ledger)
    prefill.granted(900, 0.0)
    ledger.interactive_prompts += 100
    assert prefill.bulk_prompts == pytest.approx(0.9)
    prefill.measured(None, None, 1)
    assert prefill.bulk_prompts == pytest.approx(0.9)
    ledger.interactive_prompts += 900
    assert prefill.bulk_prompts == pytest.approx(0.45), "a tenth of what was before is forgotten"


def test_fewer_bulk_prompts_are_sent_while_they_make_others_miss_the_slo() -> None:
    prefill = PrefillBudget(Ledger())
    prefill.tokens_per_s = 1000.0
    prefill.granted(100, 0.0)
    step = StepTime(10.0, 0.0, 1.0, 16, traffic=2.0, prompt_share=0.5)
    for tpot_ms, fitting in (
        (21.0, 400),
        (9.0, 400),
        (19.0, 150),
        (21.0, 250 * PACE_INCREASE - 100),
    ):
        prefill.measured(step, tpot_ms, 1)
        assert prefill.fits(fitting, 0.5, 0.0)
        assert not prefill.fits(fitting + 1, 0.5, 0.0)


def test_nothing_fits_while_prompts_yield() -> None:
    prefill = PrefillBudget(Ledger())
    assert prefill.fits(1, 0.1, 0.0)
    assert not prefill.fits(1, 0.0, 0.0)
    assert prefill.fits_at(1, 0.0, 0.0) is None


STEP = StepTime(10.0, 0.0, 1.0, 16)  # 100 tokens: a second


def with_queue(queued: int, *, slots: int = 2) -> Bench:
    """An SLO of 1.2 s, and interactive requests of a second each, of which `slots` run at once."""
    bench = Bench(8, rules(class_rules(ttft_p95_ms=1200.0)))
    bench.constraints.reported(EngineReport("e", 8, prefill_tokens_per_s=1000.0), 0.0)
    bench.limit(interactive=slots, bulk=8, mixed=8)
    bench.service_times.step_time = STEP
    bench.grant(interactive(slots))
    for number in range(queued):
        bench.wait(interactive(max_tokens=100), f"waiting {number}")
    return bench


def test_prompt_is_admitted_while_the_queue_leaves_time() -> None:
    bench = with_queue(2)
    assert bench.blocked_by(bulk(prompt_tokens=40)) is None
    bench.grant(bulk(prompt_tokens=40))
    assert bench.blocked_by(bulk(prompt_tokens=1)) is None
    assert reason(bench.blocked_by(bulk(prompt_tokens=40))) == "prefill", "a quarter of 200 ms"


def test_prompts_yield_beyond_the_measured_depth_and_until_it_is_reached_again() -> None:
    assert reason(with_queue(3).blocked_by(bulk(prompt_tokens=1))) == "prefill"
    assert with_queue(3, slots=4).blocked_by(bulk(prompt_tokens=1)) is None, "these are faster"
    fast = with_queue(3)
    fast.service_times.step_time = StepTime(1.0, 0.0, 1.0, 16)
    assert fast.blocked_by(bulk(prompt_tokens=1)) is None
    bench = with_queue(3)
    bench.wait(bulk(prompt_tokens=1), "bulk")
    at = bench.clears_at("prefill", 5.0)
    assert at is not None
    assert at > 5.0
    bench.queues.remove("waiting 0")
    assert bench.blocked_by(bulk(prompt_tokens=1)) is None

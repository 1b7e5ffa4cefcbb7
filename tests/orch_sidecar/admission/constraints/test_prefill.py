"""The engine's time for prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.constraints.prefill import MAX_STALL_S, PrefillBudget, stall_s
from orch_sidecar.admission.ledger import Ledger


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


def test_nothing_fits_while_prompts_yield() -> None:
    prefill = PrefillBudget(Ledger())
    assert prefill.fits(1, 0.1, 0.0)
    assert not prefill.fits(1, 0.0, 0.0)
    assert prefill.fits_at(1, 0.0, 0.0) is None

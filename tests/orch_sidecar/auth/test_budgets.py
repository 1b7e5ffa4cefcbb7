"""Budgets of a key: what is reserved, settled and reported, and when there is room again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.authorizer import Authorizer
from orch_sidecar.auth.budgets import Reservation, duration
from orch_sidecar.auth.keys import ApiKey, Keys


@dataclass
class Ended:
    """What is known of a request that ended."""

    admitted: int | None = 1
    status: int = 200
    cost: int = 1
    input_tokens: int | None = None
    generated_tokens: int | None = None


class Budgeted:
    """A key with budgets, and the sidecar that it is used at."""

    def __init__(
        self,
        tokens_per_minute: int | None = None,
        requests_per_minute: int | None = None,
        entries: int = 1,
    ) -> None:
        self.key = ApiKey(
            "alice",
            b"alice",
            tokens_per_minute=tokens_per_minute,
            requests_per_minute=requests_per_minute,
        )
        self.authorizer = Authorizer(Keys([self.key]), entries=entries)

    def reserve(
        self, now: float, prompt_tokens: int = 0, max_tokens: int | None = 0
    ) -> Reservation | Refusal:
        assert self.authorizer.enter(self.key, 1, now) is None
        wanted = GenerationRequest(1, False, "m", max_tokens, prompt_tokens)
        return self.authorizer.reserve(self.key, wanted, 300, now)

    def reserved(
        self, now: float, prompt_tokens: int = 0, max_tokens: int | None = 0
    ) -> Reservation:
        found = self.reserve(now, prompt_tokens, max_tokens)
        assert isinstance(found, Reservation)
        return found

    def refused(self, now: float, prompt_tokens: int = 0) -> Refusal:
        found = self.reserve(now, prompt_tokens)
        assert isinstance(found, Refusal)
        return found

    def ends(self, reserved: Reservation, ended: Ended) -> None:
        self.authorizer.settle(self.key, reserved, ended, 300)

    def leaves(self, reserved: Reservation, now: float) -> None:
        """Ends a request that took what it had reserved."""
        self.ends(reserved, Ended())
        self.authorizer.leave(self.key, 1, now)

    def headers(self, now: float) -> dict[str, str]:
        fields = self.authorizer.budget_fields(self.key, now)
        return {name.removeprefix("x-ratelimit-"): value for name, value in fields}


@pytest.mark.parametrize("running", [True, False])
def test_key_that_is_taken_out_and_put_back_has_used_what_it_had(running: bool) -> None:
    alice = Budgeted(tokens_per_minute=600, requests_per_minute=6)
    reserved = alice.reserved(0.0, 300)
    if not running:
        alice.leaves(reserved, 0.0)
    alice.authorizer.set_keys(Keys([]), 1.0)
    alice.authorizer.set_keys(Keys([ApiKey("bob", b"bob")]), 2.0)  # and changes again
    if running:
        alice.leaves(reserved, 5.0)
    alice.authorizer.set_keys(Keys([alice.key]), 10.0)
    alice.reserved(10.0)
    headers = alice.headers(10.0)
    assert (headers["remaining-tokens"], headers["remaining-requests"]) == ("400", "5")


def test_usage_of_removed_keys_is_forgotten_once_their_budgets_are_full() -> None:
    alice = Budgeted(tokens_per_minute=600)
    alice.leaves(alice.reserved(0.0, 1200), 0.0)
    for now, kept in ((0.0, 1), (119.0, 1), (120.0, 0)):
        alice.authorizer.set_keys(Keys([]), now)
        assert len(alice.authorizer._usage) == kept, "two minutes' worth"
    free = Budgeted()
    free.leaves(free.reserved(0.0, 1200), 0.0)
    free.authorizer.set_keys(Keys([]), 0.0)
    assert not free.authorizer._usage, "there is nothing that it could have used up"


def test_tokens_are_reserved_by_what_is_expected_and_settled_by_what_was_taken() -> None:
    budgeted = Budgeted(tokens_per_minute=1000)
    reserved = budgeted.reserved(0.0, 100, 50)
    assert reserved == Reservation(100, 150)
    assert budgeted.headers(0.0) == {
        "limit-tokens": "1000",
        "remaining-tokens": "850",
        "reset-tokens": "9s",
    }
    budgeted.ends(reserved, Ended(input_tokens=120, generated_tokens=10))
    assert budgeted.headers(0.0)["remaining-tokens"] == "870"


def test_request_that_got_no_slot_costs_nothing() -> None:
    budgeted = Budgeted(1000, 10)
    reserved = budgeted.reserved(0.0, 100, 50)
    assert budgeted.headers(0.0)["remaining-requests"] == "9"
    taken = budgeted.reserved(0.0, 0, 0)
    budgeted.ends(reserved, Ended(admitted=None))
    assert budgeted.headers(0.0)["remaining-requests"] == "9"
    budgeted.ends(taken, Ended(admitted=None))
    assert budgeted.headers(0.0) == {
        "limit-requests": "10",
        "remaining-requests": "10",
        "reset-requests": "0ms",
        "limit-tokens": "1000",
        "remaining-tokens": "1000",
        "reset-tokens": "0ms",
    }


def test_a_request_beyond_the_budget_is_refused_with_the_time_until_there_is_room() -> None:
    budgeted = Budgeted(tokens_per_minute=600)
    budgeted.reserved(0.0, 500)
    refusal = budgeted.refused(0.0, 200)
    assert (refusal.reason, refusal.retry_after_ms) == (Reason.KEY_TOKENS, 10_000)
    assert "budget of 600 tokens per minute" in refusal.message
    assert "expected to take 200" in refusal.message
    assert isinstance(budgeted.reserve(9.9, 200), Refusal)
    budgeted.reserved(10.0, 200)


def test_requests_per_minute_are_limited() -> None:
    budgeted = Budgeted(requests_per_minute=2)
    budgeted.reserved(0.0, 10**6)
    budgeted.reserved(0.0, 10**6)
    refusal = budgeted.refused(0.0)
    assert (refusal.reason, refusal.retry_after_ms) == (Reason.KEY_REQUESTS, 30_000)
    assert "2 requests per minute" in refusal.message
    assert budgeted.headers(0.0) == {
        "limit-requests": "2",
        "remaining-requests": "0",
        "reset-requests": "1m0s",
    }
    budgeted.reserved(30.0)


def test_a_request_larger_than_the_budget_waits_for_all_of_it_and_is_paid_off() -> None:
    budgeted = Budgeted(tokens_per_minute=600)
    budgeted.reserved(0.0, 10)
    assert budgeted.refused(0.0, 6000).retry_after_ms == 1000
    budgeted.reserved(1.0, 6000)
    assert budgeted.headers(1.0)["remaining-tokens"] == "0"
    assert budgeted.refused(1.0, 100).retry_after_ms == 550_000


def test_the_usual_output_of_a_key_is_learned() -> None:
    budgeted = Budgeted(tokens_per_minute=10**6)
    for _ in range(50):
        reserved = budgeted.reserved(0.0, 0, None)
        budgeted.ends(reserved, Ended(input_tokens=0, generated_tokens=20))
    assert budgeted.reserved(0.0, 0, None).tokens in (20, 21)
    assert budgeted.reserved(0.0, 0, 4096).tokens in (20, 21)
    assert budgeted.reserved(0.0, 0, 5).tokens == 5


def test_prompts_of_unknown_length_are_estimated_by_the_earlier_ones() -> None:
    budgeted = Budgeted(tokens_per_minute=10**6)
    wanted = GenerationRequest(1, False, "m", 0)
    tokens = []
    for _ in range(400):
        assert budgeted.authorizer.enter(budgeted.key, 1, 0.0) is None
        reserved = budgeted.authorizer.reserve(budgeted.key, wanted, 300, 0.0)
        assert isinstance(reserved, Reservation)
        tokens.append(reserved.prompt)
        budgeted.ends(reserved, Ended(input_tokens=30, generated_tokens=0))
    assert (tokens[0], tokens[-1]) == (100, 31)


def test_entries_grant_their_part_of_a_budget() -> None:
    halves = [Budgeted(1000, 5, entries=2) for _ in range(2)]
    for each in halves:
        assert each.authorizer.budget_of(each.key) == (2.5, 500)
        each.reserved(0.0, 400)
        assert isinstance(each.reserve(0.0, 200), Refusal)
        assert each.headers(0.0)["limit-tokens"] == "500"


def test_entries_together_never_grant_more_than_a_small_budget() -> None:
    """Less than one request a minute is one in several minutes."""
    granted = 0
    for each in [Budgeted(requests_per_minute=2, entries=8) for _ in range(8)]:
        assert each.authorizer.budget_of(each.key) == (0.25, None)
        for minute in range(40):
            granted += isinstance(each.reserve(60.0 * minute), Reservation)
        assert each.headers(2340.0)["limit-requests"] == "1"
    assert granted == 2 * 40


def test_a_budget_that_is_changed_is_used_by_the_same_part() -> None:
    budgeted = Budgeted(1000)
    budgeted.reserved(0.0, 900)
    budgeted.key = replace(budgeted.key, tokens_per_minute=100)
    assert budgeted.refused(0.0, 50).retry_after_ms == 24_000
    assert budgeted.headers(0.0)["remaining-tokens"] == "10"


def test_what_was_used_without_a_limit_counts_for_none() -> None:
    budgeted = Budgeted(requests_per_minute=100)
    for _ in range(10):
        budgeted.ends(budgeted.reserved(1e6, 10**9), Ended(input_tokens=10**9))
    budgeted.key = replace(budgeted.key, tokens_per_minute=1000)
    budgeted.reserved(1e6, 10)


def test_request_that_the_engine_rejects_takes_no_tokens() -> None:
    budgeted = Budgeted(1000, 10)
    budgeted.ends(budgeted.reserved(0.0, 100, 50), Ended(status=400))
    assert budgeted.headers(0.0)["remaining-tokens"] == "1000"
    assert budgeted.headers(0.0)["remaining-requests"] == "9"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0123, "13ms"),
        (0.9999, "1s"),
        (1, "1s"),
        (7.66, "7.66s"),
        (59.9999, "1m0s"),
        (60, "1m0s"),
        (372.4, "6m12s"),
        (3960, "1h6m0s"),
    ],
)
def test_times_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(
    st.lists(
        st.tuples(
            st.floats(0, 30),
            st.integers(0, 300),
            st.integers(0, 300),
            st.sampled_from((1, 1, None)),
        ),
        max_size=60,
    )
)
def test_what_is_taken_stays_within_the_budget_and_a_minutes_worth(
    steps: list[tuple[float, int, int, int | None]],
) -> None:
    """Whatever each request takes, at once after its arrival: one can exceed what it reserved."""
    budgeted, now, taken = Budgeted(tokens_per_minute=600), 0.0, 0
    for passed_s, expected, took, admitted in steps:
        now += passed_s
        reserved = budgeted.reserve(now, expected)
        if isinstance(reserved, Refusal):
            assert reserved.retry_after_ms is not None
            assert 0 < reserved.retry_after_ms <= 1000 * 60 * (1 + 300 / 600)
            continue
        budgeted.ends(reserved, Ended(admitted, input_tokens=took, generated_tokens=0))
        taken += took if admitted else 0
        assert taken <= 600 + 600 * now / 60 + 300

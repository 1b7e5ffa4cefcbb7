"""How fast an engine reads the prompts that it has been sent, and what shorter ones take of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from orch_sidecar.admission.prediction.prompts import (
    MAX_PROMPTS,
    MAX_SHORTER_FACTOR,
    SHARE_BESIDE_BULK,
    WINDOW_S,
    ShorterPrompts,
    UnreadPrompts,
)
from orch_sidecar.admission.types import EngineReport, Lease
from tests.orch_sidecar.admission.examples import interactive


def prompts_of(step_s: float = 0.1, **known: Any) -> UnreadPrompts:
    """1000 tokens per second; a step reads 100, of one prompt 50, beside decodes of 100 ms."""
    prompts = UnreadPrompts()
    report(prompts, 0.0, step_s, **known)
    return prompts


def report(prompts: UnreadPrompts, now: float, step_s: float = 0.1, **known: Any) -> None:
    usual = {"prefill_tokens_per_s": 1000.0, "chunk_tokens": 50, "step_tokens": 100}
    leased = known.pop("leased", 0)
    prompts.reported(EngineReport("e", 8, **usual | known), leased, 1.0, step_s, now)


def send(prompts: UnreadPrompts, tokens: int, now: float = 0.0) -> Lease:
    lease = Lease("a", 1, "e")
    prompts.sent(lease, tokens, now)
    return lease


def test_prompts_are_read_one_after_the_other_between_decodes() -> None:
    """A step takes 200 ms: half for its 100 tokens, half for decodes."""
    prompts = prompts_of()
    first, second = send(prompts, 300), send(prompts, 200)
    assert prompts.clears_at == pytest.approx(1.0)
    assert (first.read_from, first.read_to) == (0, 300)
    assert (second.read_from, second.read_to) == (0, 500)
    assert prompts.unread(0.6) == pytest.approx(200)
    assert prompts.tokens_read(0.6) == pytest.approx(300), "the first one"
    assert prompts.unread(1.1) == 0
    assert send(prompts, 100, 2.0).read_from == 500, "after a pause"
    assert prompts.clears_at == pytest.approx(2.2)


def test_engine_that_reads_nothing_but_prompts_is_as_fast_as_measured() -> None:
    prompts = prompts_of(0.0)
    send(prompts, 300)
    assert prompts.clears_at == pytest.approx(0.3)


def test_reports_of_fewer_unread_prompts_correct_the_model() -> None:
    """Cached prefixes are read in no time."""
    prompts = prompts_of()
    for tokens in (300, 200, 100):
        send(prompts, tokens)
    report(prompts, 0.2, prefilling=3)
    assert prompts.unread(0.2) == pytest.approx(500), "by the model"
    report(prompts, 0.2, prefilling=2)
    assert prompts.unread(0.2) == pytest.approx(300), "the last two"
    report(prompts, 0.3, prefilling=0, scheduled=2, leased=3)
    assert prompts.unread(0.3) == pytest.approx(100), "one is on its way"
    report(prompts, 0.4, prefilling=0, scheduled=3, leased=3)
    assert prompts.unread(0.4) == 0


def test_part_that_the_engine_had_to_read_follows_its_reports() -> None:
    prompts = prompts_of(0.0)
    assert prompts.read_share == 1
    send(prompts, 100)
    report(prompts, 0.1, 0.0, prefilling=0)
    assert prompts.read_share == pytest.approx(1), "as long as was predicted"
    for number in range(1, 200):
        send(prompts, 100, number)
        report(prompts, number + 0.02, 0.0, prefilling=0)
    assert prompts.read_share == pytest.approx(0.2, abs=0.02), "80 of 100 tokens were cached"


def test_what_was_not_read_of_an_aborted_request_is_not_read() -> None:
    prompts = prompts_of()
    first, second = send(prompts, 300), send(prompts, 200)
    prompts.ended_early(second, 200, 0.2)
    assert prompts.unread(0.2) == pytest.approx(200)
    assert prompts.unread(0.4) == pytest.approx(100)
    prompts.ended_early(first, 300, 9.0)
    assert prompts.unread(9.0) == 0


def test_nothing_is_unread_that_is_known_while_the_rate_is_not() -> None:
    prompts = prompts_of(prefill_tokens_per_s=None)
    send(prompts, 300)
    assert prompts.unread(0.0) == 0
    assert prompts.unread_after(300, 0.0) == 0
    assert prompts.reading_s(100, 300, 0.1) == pytest.approx(0.6), "the steps alone"


def test_first_token_comes_after_the_prompts_before_it_and_in_as_many_steps_as_it_has_chunks() -> (
    None
):
    prompts = prompts_of()
    assert prompts.reading_s(0, 10, 0.1) == pytest.approx(0.01 + 0.1)
    assert prompts.reading_s(0, 200, 0.1) == pytest.approx(0.2 + 4 * 0.1), (
        "50 of a step are its own"
    )
    assert prompts.reading_s(800, 200, 0.1) == pytest.approx(1.0 + 10 * 0.1)


def test_decoding_is_slower_while_prompts_are_read() -> None:
    prompts = prompts_of()
    assert prompts.wall_s(1.0, 0, 0.1) == 1.0
    assert prompts.wall_s(1.0, 300, 0.1) == pytest.approx(1.3)
    assert prompts.wall_s(0.1, 300, 0.1) == pytest.approx(0.2), "one step, and its 100 tokens"
    assert prompts.wall_s(0.0, 300, 0.1) == 0.0


def test_a_prompt_that_is_surely_in_time_is_found_without_prediction() -> None:
    prompts = prompts_of()
    request = interactive(prompt_tokens=100)
    assert not prompts.may_be_late(request, 1, 0.1, 0.0), "nothing is before it"
    send(prompts, 300)
    assert not prompts.may_be_late(request, 1, 2.0, 0.0)
    assert prompts.may_be_late(request, 1, 1.0, 0.0)
    assert prompts.may_be_late(request, 9, 2.0, 0.0), "where it counts more often"


RATE = 1000.0  # tokens per second
READABLE = int(RATE * WINDOW_S)


def arrived(
    lengths: Iterable[int] = (), at: float = 0.0, key: bytes = b"", weight: float = 1.0
) -> ShorterPrompts:
    found = ShorterPrompts()
    came(found, lengths, at, key, weight)
    return found


def came(
    prompts: ShorterPrompts,
    lengths: Iterable[int],
    at: float = 0.0,
    key: bytes = b"",
    weight: float = 1.0,
) -> None:
    for tokens in lengths:
        request = interactive(prompt_tokens=tokens, key=key, weight=weight)
        prompts.recent.append((at, request))


def again(
    prompts: ShorterPrompts, tokens: int, *, bulk: float = 0.0, now: float = 0.0, key: bytes = b""
) -> float:
    return prompts.factor(interactive(prompt_tokens=tokens, key=key), RATE, bulk, now)


def test_a_prompt_counts_once_where_no_shorter_ones_come() -> None:
    assert again(arrived(), 5000) == 0
    assert again(arrived([900, 1000, 800]), 100) == 0
    assert again(arrived([900] * 20), 900) == 0, "equal ones: first come, first served"


def test_it_counts_more_often_the_more_of_the_time_shorter_ones_take() -> None:
    quarter = arrived([READABLE // 40] * 10)
    assert again(quarter, 1000) == pytest.approx(1 / (1 - 1 / 4) - 1)
    half = arrived([READABLE // 40] * 20)
    assert again(half, 1000) == pytest.approx(1)
    assert again(half, 100) == 0, "they are not shorter than that"


def test_it_counts_no_more_often_than_a_bound_whatever_comes() -> None:
    assert again(arrived([READABLE // 40] * 39), 1000) == MAX_SHORTER_FACTOR
    assert again(arrived([READABLE] * 60), READABLE + 1) == MAX_SHORTER_FACTOR


@pytest.mark.parametrize("bulk", [0.0, 0.25, 1.0])
def test_the_time_is_less_the_more_slots_bulk_requests_have_or_wait_for(bulk: float) -> None:
    part = 0.25 / (1 - (1 - SHARE_BESIDE_BULK) * bulk)
    found = again(arrived([READABLE // 40] * 10), 1000, bulk=bulk)
    assert found == pytest.approx(1 / (1 - part) - 1)


def test_an_engine_that_reads_fast_has_time_for_all() -> None:
    prompts = arrived([8000] * MAX_PROMPTS)
    assert prompts.factor(interactive(prompt_tokens=9000), 1e9, 1.0, 1.0) < 0.01


def test_a_change_of_the_mix_is_followed_within_the_window() -> None:
    prompts = arrived([READABLE // 20] * 20)
    assert again(prompts, 5000) == MAX_SHORTER_FACTOR
    later = WINDOW_S + 0.1
    assert again(prompts, 5000, now=later) == 0
    came(prompts, [6000] * 10, later)
    assert again(prompts, 5000, now=later) == 0, "these are longer"


def test_of_more_prompts_the_last_ones_count_in_their_own_time() -> None:
    prompts = arrived([READABLE] * 5)
    for number in range(MAX_PROMPTS):
        came(prompts, [25], number / 20)
    assert again(prompts, 5000, now=MAX_PROMPTS / 20) == pytest.approx(1, rel=0.05), "20 a second"


def test_so_many_at_one_instant_leave_no_time() -> None:
    prompts = arrived([100] * MAX_PROMPTS)
    assert again(prompts, 200) == MAX_SHORTER_FACTOR
    assert again(prompts, 50) == 0


# API keys


def test_a_key_that_asks_for_little_is_not_delayed_by_the_many_prompts_of_another() -> None:
    prompts = arrived([100] * 50, key=b"flood")
    assert again(prompts, 500, key=b"flood") == pytest.approx(1)
    assert again(prompts, 500, key=b"rare") == pytest.approx(1 / (1 - 0.05) - 1), "as much again"


def test_a_key_that_asks_for_as_much_as_the_others_counts_all_of_theirs() -> None:
    prompts = arrived([100] * 30, key=b"a")
    came(prompts, [1000] * 3, key=b"b")
    assert again(prompts, 1000, key=b"b") == pytest.approx(1 / (1 - 0.3) - 1)
    assert again(prompts, 100, key=b"a") == pytest.approx(1 / (1 - 0.3) - 1), "3100 of its own"


def test_a_key_of_more_weight_counts_less_of_the_others() -> None:
    prompts = arrived([100] * 60, key=b"a")
    request = interactive(prompt_tokens=1200, key=b"b", weight=3.0)
    assert prompts.factor(request, RATE, 0.0, 0.0) == pytest.approx(1 / (1 - 0.04) - 1)


def test_splitting_its_work_gives_a_key_no_more_time() -> None:
    """What it asks for counts, in however many requests."""
    prompts = arrived([100] * 40, key=b"a")
    few = again(prompts, 150, key=b"b")
    came(prompts, [150] * 10, key=b"b")
    assert again(prompts, 150, key=b"b") > 5 * few > 0

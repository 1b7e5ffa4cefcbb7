"""The time that an engine needs for prompts which are shorter than a given one."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from orch_sidecar.admission.prediction.shorter_prompts import (
    MAX_PROMPTS,
    MAX_SHORTER_FACTOR,
    SHARE_BESIDE_BULK,
    WINDOW_S,
    ShorterPrompts,
)
from tests.orch_sidecar.admission.examples import interactive

RATE = 1000.0  # tokens per second
READABLE = int(RATE * WINDOW_S)


def prompts_of(
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
    assert again(prompts_of(), 5000) == 0
    assert again(prompts_of([900, 1000, 800]), 100) == 0
    assert again(prompts_of([900] * 20), 900) == 0, "equal ones: first come, first served"


def test_it_counts_more_often_the_more_of_the_time_shorter_ones_take() -> None:
    quarter = prompts_of([READABLE // 40] * 10)
    assert again(quarter, 1000) == pytest.approx(1 / (1 - 1 / 4) - 1)
    half = prompts_of([READABLE // 40] * 20)
    assert again(half, 1000) == pytest.approx(1)
    assert again(half, 100) == 0, "they are not shorter than that"


def test_it_counts_no_more_often_than_a_bound_whatever_comes() -> None:
    assert again(prompts_of([READABLE // 40] * 39), 1000) == MAX_SHORTER_FACTOR
    assert again(prompts_of([READABLE] * 60), READABLE + 1) == MAX_SHORTER_FACTOR


@pytest.mark.parametrize("bulk", [0.0, 0.25, 1.0])
def test_the_time_is_less_the_more_slots_bulk_requests_have_or_wait_for(bulk: float) -> None:
    part = 0.25 / (1 - (1 - SHARE_BESIDE_BULK) * bulk)
    found = again(prompts_of([READABLE // 40] * 10), 1000, bulk=bulk)
    assert found == pytest.approx(1 / (1 - part) - 1)


def test_an_engine_that_reads_fast_has_time_for_all() -> None:
    prompts = prompts_of([8000] * MAX_PROMPTS)
    assert prompts.factor(interactive(prompt_tokens=9000), 1e9, 1.0, 1.0) < 0.01


def test_a_change_of_the_mix_is_followed_within_the_window() -> None:
    prompts = prompts_of([READABLE // 20] * 20)
    assert again(prompts, 5000) == MAX_SHORTER_FACTOR
    later = WINDOW_S + 0.1
    assert again(prompts, 5000, now=later) == 0
    came(prompts, [6000] * 10, later)
    assert again(prompts, 5000, now=later) == 0, "these are longer"


def test_of_more_prompts_the_last_ones_count_in_their_own_time() -> None:
    prompts = prompts_of([READABLE] * 5)
    for number in range(MAX_PROMPTS):
        came(prompts, [25], number / 20)
    assert again(prompts, 5000, now=MAX_PROMPTS / 20) == pytest.approx(1, rel=0.05), "20 a second"


def test_so_many_at_one_instant_leave_no_time() -> None:
    prompts = prompts_of([100] * MAX_PROMPTS)
    assert again(prompts, 200) == MAX_SHORTER_FACTOR
    assert again(prompts, 50) == 0


# API keys


def test_a_key_that_asks_for_little_is_not_delayed_by_the_many_prompts_of_another() -> None:
    prompts = prompts_of([100] * 50, key=b"flood")
    assert again(prompts, 500, key=b"flood") == pytest.approx(1)
    assert again(prompts, 500, key=b"rare") == pytest.approx(1 / (1 - 0.05) - 1), "as much again"


def test_a_key_that_asks_for_as_much_as_the_others_counts_all_of_theirs() -> None:
    prompts = prompts_of([100] * 30, key=b"a")
    came(prompts, [1000] * 3, key=b"b")
    assert again(prompts, 1000, key=b"b") == pytest.approx(1 / (1 - 0.3) - 1)
    assert again(prompts, 100, key=b"a") == pytest.approx(1 / (1 - 0.3) - 1), "3100 of its own"


def test_a_key_of_more_weight_counts_less_of_the_others() -> None:
    prompts = prompts_of([100] * 60, key=b"a")
    request = interactive(prompt_tokens=1200, key=b"b", weight=3.0)
    assert prompts.factor(request, RATE, 0.0, 0.0) == pytest.approx(1 / (1 - 0.04) - 1)


def test_splitting_its_work_gives_a_key_no_more_time() -> None:
    """What it asks for counts, in however many requests."""
    prompts = prompts_of([100] * 40, key=b"a")
    few = again(prompts, 150, key=b"b")
    came(prompts, [150] * 10, key=b"b")
    assert again(prompts, 150, key=b"b") > 5 * few > 0

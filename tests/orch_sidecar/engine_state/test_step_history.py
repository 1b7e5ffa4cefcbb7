"""Mean batches from the counts that an engine reports."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.engine_state.step_history import StepHistory


def counts(steps: dict[str, int], epoch: str = "a") -> dict[str, Any]:
    return {
        "epoch": epoch,
        "steps_by_batch": {batch: [number, 0.01 * number] for batch, number in steps.items()},
    }


def history(*reports: tuple[float, dict[str, Any]]) -> StepHistory:
    made = StepHistory()
    for at, document in reports:
        made.add(document, at)
    return made


def test_nothing_is_known_before_the_first_report() -> None:
    assert StepHistory().mean_batch(0.0, 1.0) is None
    assert StepHistory().known_until < 0


def test_mean_batch_weighs_the_steps_of_the_time() -> None:
    made = history(
        (10.0, counts({"1": 10})),
        (12.0, counts({"1": 10, "4": 30})),
        (14.0, counts({"1": 10, "4": 30, "8": 10})),
    )
    assert made.mean_batch(10.0, 12.0) == 4.0
    assert made.mean_batch(11.0, 14.0) == pytest.approx((15 * 4 + 10 * 8) / 25, abs=0.05)
    assert made.known_until == 14.0


def test_mean_batch_is_unknown_outside_of_the_reports_and_without_steps() -> None:
    made = history((10.0, counts({"1": 10})), (11.0, counts({"1": 10})))
    assert made.mean_batch(9.0, 10.5) is None
    assert made.mean_batch(10.5, 11.5) is None
    assert made.mean_batch(10.2, 10.8) is None


def test_engine_that_restarted_begins_anew() -> None:
    made = history((10.0, counts({"1": 90})), (11.0, counts({"2": 3}, "b")))
    made.add(counts({"2": 6}, "b"), 12.0)
    assert made.mean_batch(10.5, 12.0) is None
    assert made.mean_batch(11.0, 12.0) == 2.0


def tokens_counted(tokens: int, epoch: str = "a") -> dict[str, Any]:
    return {
        "epoch": epoch,
        "generated_tokens_total": tokens,
        "prefill": {"tokens": 10 * tokens, "seconds": 1.0},
    }


def rates(*reports: tuple[float, dict[str, Any]]) -> StepHistory:
    made = StepHistory()
    for at, document in reports:
        made.add(document, at)
    return made


def test_token_rates_need_two_reports() -> None:
    for each in (StepHistory(), rates((1.0, tokens_counted(5)))):
        assert each.token_rates() == {"tokens_per_s": None, "prompt_tokens_per_s": None}


def test_token_rates_are_those_of_the_last_seconds() -> None:
    tokens = [100] * 5 + [100 * each for each in range(2, 9)]
    reports = [(float(at), tokens_counted(each)) for at, each in enumerate(tokens)]
    assert rates(*reports).token_rates() == {"tokens_per_s": 100.0, "prompt_tokens_per_s": 1000.0}
    apart = rates((0.0, tokens_counted(0)), (60.0, tokens_counted(600)))
    assert apart.token_rates()["tokens_per_s"] == 10.0


def test_token_rates_of_an_engine_that_restarted_begin_anew() -> None:
    made = rates((10.0, tokens_counted(900)), (11.0, tokens_counted(6, "b")))
    assert made.token_rates()["tokens_per_s"] is None
    made.add(tokens_counted(12, "b"), 12.0)
    assert made.token_rates()["tokens_per_s"] == 6.0

"""Tokens per second from the counts that an engine reports."""

from __future__ import annotations

from typing import Any

from orch_sidecar.control.live.source import TokenRates


def counts(tokens: int, epoch: str = "a") -> dict[str, Any]:
    return {
        "epoch": epoch,
        "generated_tokens_total": tokens,
        "prefill": {"tokens": 10 * tokens, "seconds": 1.0},
    }


def rates(*reports: tuple[float, dict[str, Any]]) -> TokenRates:
    made = TokenRates()
    for at, document in reports:
        made.add(document, at)
    return made


def test_nothing_is_known_from_one_report() -> None:
    for each in (TokenRates(), rates((1.0, counts(5)))):
        assert each.document() == {"tokens_per_s": None, "prompt_tokens_per_s": None}


def test_rates_are_those_of_the_last_seconds() -> None:
    tokens = [100] * 5 + [100 * each for each in range(2, 9)]
    reports = [(float(at), counts(each)) for at, each in enumerate(tokens)]
    assert rates(*reports).document() == {"tokens_per_s": 100.0, "prompt_tokens_per_s": 1000.0}
    apart = rates((0.0, counts(0)), (60.0, counts(600)))
    assert apart.document()["tokens_per_s"] == 10.0


def test_engine_that_restarted_begins_anew() -> None:
    made = rates((10.0, counts(900)), (11.0, counts(6, "b")))
    assert made.document()["tokens_per_s"] is None
    made.add(counts(12, "b"), 12.0)
    assert made.document()["tokens_per_s"] == 6.0

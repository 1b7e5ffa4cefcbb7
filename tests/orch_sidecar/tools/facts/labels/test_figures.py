"""The figures of a set of completed requests."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.labels.figures import CompletedRequest, Totals, figures
from orch_sidecar.tools.facts.labels.observation import Run


@pytest.mark.parametrize(
    ("ended_s", "tokens", "longest", "tpot_s"),
    [
        (2.0, 11, None, 0.1),  # the first token is excluded
        (2.0, 44, 11, 0.1),  # four sequences are generated side by side, in the time of one
        (1.0, 4, 1, None),
    ],
)
def test_tpot_divides_by_the_longest_sequence_without_its_first_token(
    ended_s: float, tokens: int, longest: int | None, tpot_s: float | None
) -> None:
    request = CompletedRequest(0.0, 1.0, ended_s, 8, tokens, longest)
    assert request.tpot_s == pytest.approx(tpot_s)


def served(
    arrived_s: float, first_s: float | None, ended_s: float, tokens: int = 3
) -> CompletedRequest:
    return CompletedRequest(arrived_s, first_s, ended_s, 5, tokens)


@pytest.mark.parametrize(
    ("answers", "at_once"),
    [
        # The third one waits for its first token while the others are generated.
        ([served(0, 1, 4), served(0, 2, 3), served(0, 5, 6)], 2),
        ([served(0, 1, 2), served(0, 2, 3)], 1),  # one begins when another ends
        ([served(0, None, 4), served(1, 2, 3)], 2),  # counts from its arrival
        ([served(0, 1, 1, tokens=1)], 1),
        ([], 0),
    ],
)
def test_answers_overlap_between_first_token_and_end(
    answers: list[CompletedRequest], at_once: int
) -> None:
    totals = Totals(requests=1, window_s=1.0, input_tokens=1, output_tokens=1)
    assert Run(model="m", totals=totals, served=answers).overlap == at_once


def test_notes_are_in_milliseconds_and_omit_unknown_values() -> None:
    notes = figures([served(0, 1, 2), served(1, 2, 3)]).latency_ms
    assert notes["ttft_p50_ms"] == 1000
    assert notes["tpot_p95_ms"] == 500
    assert notes["latency_p90_ms"] == 2000
    assert set(figures([served(0, None, 2)]).latency_ms) == {
        "latency_p50_ms",
        "latency_p90_ms",
        "latency_p95_ms",
    }

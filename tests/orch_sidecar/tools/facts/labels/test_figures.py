"""The figures of a set of completed requests."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.labels.figures import CompletedRequest, Totals, figures
from orch_sidecar.tools.facts.labels.observation import Run


def test_tpot_of_one_sequence_excludes_its_first_token() -> None:
    assert CompletedRequest(0.0, 1.0, 2.0, 8, 11).tpot_s == pytest.approx(0.1)


def test_tpot_of_several_sequences_divides_by_the_longest_one() -> None:
    """Four sequences of eleven tokens are generated side by side, in the time of one."""
    request = CompletedRequest(0.0, 1.0, 2.0, 8, 44, longest_output_tokens=11)

    assert request.tpot_s == pytest.approx(0.1)
    assert request.sequence_tokens == 11


def test_several_sequences_of_one_token_have_no_tpot() -> None:
    assert CompletedRequest(0.0, 1.0, 1.0, 8, 4, longest_output_tokens=1).tpot_s is None


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

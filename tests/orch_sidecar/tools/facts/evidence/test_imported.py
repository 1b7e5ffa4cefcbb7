"""Labels, loads and overlaps of measured runs."""

from __future__ import annotations

from orch_sidecar.tools.facts.labels.figures import CompletedRequest, figures, overlap
from orch_sidecar.tools.facts.labels.measured import latency_notes


def served(
    arrived_s: float, first_s: float | None, ended_s: float, tokens: int = 3
) -> CompletedRequest:
    return CompletedRequest(arrived_s, first_s, ended_s, 5, tokens)


def test_answers_overlap_between_first_token_and_end() -> None:
    # The third one waits for its first token while the others are generated.
    assert overlap([served(0, 1, 4), served(0, 2, 3), served(0, 5, 6)]) == 2


def test_answer_that_begins_when_another_ends_does_not_overlap_it() -> None:
    assert overlap([served(0, 1, 2), served(0, 2, 3)]) == 1


def test_answer_without_a_first_token_counts_from_its_arrival() -> None:
    assert overlap([served(0, None, 4), served(1, 2, 3)]) == 2


def test_answer_of_one_token_is_one_answer() -> None:
    assert overlap([served(0, 1, 1, tokens=1)]) == 1
    assert overlap([]) == 0


def test_notes_are_in_milliseconds_and_omit_unknown_values() -> None:
    notes = latency_notes(figures([served(0, 1, 2), served(1, 2, 3)]).times_s, 1000)
    assert notes["ttft_p50_ms"] == 1000
    assert notes["tpot_p95_ms"] == 500
    assert notes["latency_p90_ms"] == 2000
    assert set(latency_notes(figures([served(0, None, 2)]).times_s, 1000)) == {
        "latency_p50_ms",
        "latency_p90_ms",
        "latency_p95_ms",
    }

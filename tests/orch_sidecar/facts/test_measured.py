"""What another tool measured, in our terms."""

from __future__ import annotations

import pytest

from orch_sidecar.facts.measured import Unfit, claim_of, latency_notes, overlap
from orch_sidecar.facts.row import Label
from orch_sidecar.facts.served import Served, figures


def served(arrived_s: float, first_s: float | None, ended_s: float, tokens: int = 3) -> Served:
    return Served(arrived_s, first_s, ended_s, 5, tokens)


def test_answers_overlap_between_first_token_and_end() -> None:
    # The third one waits for its first token while the others are generated.
    assert overlap([served(0, 1, 4), served(0, 2, 3), served(0, 5, 6)]) == 2


def test_answer_that_begins_when_another_ends_does_not_overlap_it() -> None:
    assert overlap([served(0, 1, 2), served(0, 2, 3)]) == 1


def test_answer_whose_first_token_nobody_saw_counts_from_its_arrival() -> None:
    assert overlap([served(0, None, 4), served(1, 2, 3)]) == 2


def test_answer_of_one_token_is_one_answer() -> None:
    assert overlap([served(0, 1, 1, tokens=1)]) == 1
    assert overlap([]) == 0


def test_notes_are_in_milliseconds_and_leave_out_what_nobody_saw() -> None:
    notes = latency_notes(figures([served(0, 1, 2), served(1, 2, 3)]))
    assert notes["ttft_p50_ms"] == 1000
    assert notes["tpot_p95_ms"] == 500
    assert notes["latency_p90_ms"] == 2000
    assert set(latency_notes(figures([served(0, None, 2)]))) == {
        "latency_p50_ms",
        "latency_p90_ms",
        "latency_p95_ms",
    }


@pytest.mark.parametrize("at_once", [None, 1, 8])
def test_no_claim_is_none(at_once: int | None) -> None:
    assert claim_of(None, at_once) is None


@pytest.mark.parametrize(
    ("said", "at_once"),
    [("single_stream", 1), ("batched_online", None), ("batched_online", 8), ("offline", None)],
)
def test_claim_that_the_load_allows_is_a_label(said: str, at_once: int | None) -> None:
    assert claim_of(said, at_once) is Label(said)


@pytest.mark.parametrize(
    ("said", "at_once", "rule"),
    [
        ("single_stream", 8, "a limit of 8"),
        ("single_stream", None, "no limit"),
        ("batched_online", 1, "a limit of 1"),
        ("aggregate", 8, "must be one of single_stream, batched_online"),
    ],
)
def test_claim_that_the_load_contradicts_is_refused(
    said: str, at_once: int | None, rule: str
) -> None:
    with pytest.raises(Unfit, match=rule) as refused:
        claim_of(said, at_once)
    assert (refused.value.refused.name, refused.value.refused.value) == ("measurement_type", said)

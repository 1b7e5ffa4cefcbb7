"""Labels, loads and overlaps of measured runs."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.evidence.imported import (
    Rejection,
    parse_claim,
)
from orch_sidecar.tools.facts.labels.figures import CompletedRequest, figures, overlap
from orch_sidecar.tools.facts.labels.measured import latency_notes
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label


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


@pytest.mark.parametrize("at_once", [None, 1, 8])
def test_missing_claim_is_none(at_once: int | None) -> None:
    assert parse_claim(None, Arrivals.POISSON, at_once) is None


@pytest.mark.parametrize(
    ("claim", "arrivals", "at_once"),
    [
        ("single_stream", Arrivals.ONE_BY_ONE, 1),
        ("batched_online", Arrivals.POISSON, None),
        ("batched_online", Arrivals.CLOSED_LOOP, 8),
        ("offline", Arrivals.AT_ONCE, None),
        ("offline", Arrivals.CLOSED_LOOP, 64),
        ("to_be_confirmed", Arrivals.POISSON, 1),
    ],
)
def test_claim_that_the_load_allows_is_a_label(
    claim: str, arrivals: Arrivals, at_once: int | None
) -> None:
    assert parse_claim(claim, arrivals, at_once) is Label(claim)


@pytest.mark.parametrize(
    ("claim", "arrivals", "at_once", "rule"),
    [
        (
            "single_stream",
            Arrivals.CLOSED_LOOP,
            8,
            "one_by_one; at_once=8 must be 1",
        ),
        ("single_stream", Arrivals.AT_ONCE, None, "arrivals=at_once must be one_by_one"),
        ("single_stream", Arrivals.POISSON, 1, "arrivals=poisson must be one_by_one"),
        ("batched_online", Arrivals.ONE_BY_ONE, 1, "at_once=1 must be above 1"),
        ("offline", Arrivals.ONE_BY_ONE, 1, "at_once=1 must be above 1"),
        ("offline", Arrivals.POISSON, None, "must be at_once or closed_loop"),
        ("offline", Arrivals.CONSTANT, 64, "arrivals=constant must be"),
        ("aggregate", Arrivals.AT_ONCE, 8, "must be one of single_stream, batched_online"),
    ],
)
def test_claim_that_the_load_contradicts_is_rejected(
    claim: str, arrivals: Arrivals, at_once: int | None, rule: str
) -> None:
    with pytest.raises(Rejection, match=rule) as raised:
        parse_claim(claim, arrivals, at_once)
    assert (raised.value.name, raised.value.value) == (
        "measurement_type",
        claim,
    )

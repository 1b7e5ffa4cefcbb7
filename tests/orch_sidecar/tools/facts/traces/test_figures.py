"""Rows of recorded scenarios: their figures, and under which conditions they are."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from orch_sidecar.tools.facts.labels.measured import Source
from orch_sidecar.tools.facts.tables.row import Row, parse_notes
from orch_sidecar.tools.facts.traces.spans import Span
from tests.orch_sidecar.tools.facts.cheats.alterations import (
    ATTEMPT,
    SEQUENCE,
    SERVER,
    Alteration,
    both,
    changed,
    copied,
    moved,
    raised,
    reasons,
    recounted,
    set_to,
    verdict,
)


def row_of(recording: str, *alterations: Alteration, given: Source | None = None) -> Row:
    found = verdict(recording, *alterations, given=given)
    assert isinstance(found, Row), found
    return found


def test_attribute_that_is_no_number_is_an_error() -> None:
    alter = set_to(SEQUENCE, {"orch.batch_size.mean": float("nan")}, [0])
    with pytest.raises(ValueError, match=r"orch\.batch_size\.mean is nan: Input should"):
        verdict("cloud", alter)


def test_clocks_are_compared_by_how_much_they_differ() -> None:
    found = verdict("home", moved(-100, SEQUENCE))
    assert isinstance(found, list)
    [clocks] = [each.detail for each in found if "clock" in each.detail]
    assert re.match(r"5 of its sequences lie outside of their requests by up to 99\.99\d s", clocks)
    assert reasons(verdict("home", moved(-0.9, SEQUENCE))) == set()


def test_speculative_decoding_is_a_condition_of_the_row() -> None:
    drafts = set_to(SEQUENCE, {"orch.speculative": "ngram:3", "orch.tokens_per_step": 4})
    for alterations, expected in (((), "none"), ((drafts,), "ngram:3")):
        notes = parse_notes(row_of("cloud", *alterations).scenario_notes)
        assert notes["speculative"] == expected


def test_hits_of_the_prefix_cache_are_a_note() -> None:
    assert parse_notes(row_of("home").scenario_notes)["prefix_hit_ratio"] == "0"
    # 23 + 22 + 22 + 3 + 3 tokens of prompts; the second and third were cached but for six tokens.
    hits = both(
        *(
            raised(f"orch.prefix_cache.hits_{at}", 16, later)
            for first in (1, 2)
            for at, later in (("total", range(first, 5)), ("before", range(first + 1, 5)))
        ),
    )
    notes = parse_notes(row_of("home", hits).scenario_notes)
    assert notes["prefix_hit_ratio"] == f"{32 / 73:.6g}"


def test_batch_is_the_mean_over_the_decode_steps() -> None:
    row = row_of("cloud")
    notes = parse_notes(row.scenario_notes)
    assert (row.batch, notes["batch_mean"], notes["batch_max"]) == (6, f"{157 / 28:.6g}", "6")


def test_request_ends_with_its_last_token() -> None:
    """The end of HTTP can come much later."""
    last_s = 0.2
    ends = both(
        set_to(SERVER, {"orch.last_token_s": last_s}),
        *(
            changed(name, lambda span: replace(span, end_ns=span.end_ns + 5 * 10**9))
            for name in (SERVER, ATTEMPT)
        ),
    )
    notes = parse_notes(row_of("cloud", ends).scenario_notes)
    assert (notes["latency_p50_ms"], notes["window_s"]) == ("200", "0.206")


def test_offline_row_has_no_latencies() -> None:
    notes = parse_notes(row_of("offline").scenario_notes)
    assert [name for name in notes if name.endswith("_ms")] == []


def test_time_per_token_of_several_sequences_is_that_of_one() -> None:
    """A request for two sequences, beside those of a recorded run."""
    sequence = "f" * 16

    def doubled(spans: list[Span]) -> list[Span]:
        copies = [replace(span, span_id=sequence) for span in spans if span.name == SEQUENCE]
        return [*spans, *copies]

    two = both(
        *(copied(n, 0.0, doubled, set_to(SERVER, {"orch.cost": 2}), keep=False) for n in (0,)),
        set_to(SEQUENCE, {"orch.batch_size.max": 7, "orch.batch_size.mean": 6.5}),
        recounted,
    )
    times = [
        float(parse_notes(row_of("cloud", *each).scenario_notes)["tpot_p50_ms"])
        for each in ((), (two,))
    ]
    assert times[1] == pytest.approx(times[0], rel=0.01)


def test_model_id_that_the_engine_contradicts_makes_no_row() -> None:
    found = verdict("cloud", given=Source("test", model_id="org/Big-70B"))
    assert isinstance(found, list)
    [detail] = [each.detail for each in found]
    assert detail.startswith("the model 'org/Big-70B': the engine serves tiny")

"""Objections to a scenario: labels, steps, spans and traffic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch_sidecar.tools.facts.labels.judge import Reason
from orch_sidecar.tools.facts.traces.requests import build_traffic
from tests.documents import ROOT, quoted, rows, section
from tests.orch_sidecar.tools.facts.objections import (
    LABELS,
    objections_in,
    objections_to,
    valid,
)
from tests.orch_sidecar.tools.facts.spans import one, real, without

HEADING = "Objections to a measurement"


def test_without_ids_a_real_warmup_is_part_of_the_run() -> None:
    traffic = build_traffic(without(real("home"), "orch.scenario"))
    assert objections_in(traffic, None) == {}


@pytest.mark.parametrize("label", LABELS)
def test_run_that_fits_its_label_has_no_objections(label: str) -> None:
    assert objections_to(valid(label, 1, 0, 1), valid(label, 2, 1, 2), scenario="run-1") == {}


def test_single_stream_with_overlapping_sequences_is_an_objection() -> None:
    reasons = objections_to(
        valid("single_stream", 1, 0, 1.5),
        valid("single_stream", 2, 1, 2),
        scenario="run-1",
    )
    assert reasons == {
        "overlap": "1 of 2 sequences arrived while another was in the engine: requests "
        "come one after the other"
    }


def test_unknown_steps_are_an_objection() -> None:
    for batch in (None, (0, 0, 0.0)):
        request = valid("single_stream", 1, 0, 1, batch=batch)
        unknown = without(request, "orch.batch_size.max", "orch.batch_size.mean")
        assert "no_steps" in objections_to(unknown, scenario="run-1")


def test_missing_engine_spans_are_an_objection() -> None:
    reasons = objections_to(
        valid("batched_online", 1, 0, 1, sequences=3, decoded=2), scenario="run-1"
    )
    assert reasons == {"engine_not_traced": "1 request: fewer spans of the engine than sequences"}


def test_coalesced_request_of_another_run_makes_this_one_shared() -> None:
    leader = valid("batched_online", 1, 0, 10)
    link = leader[0].link
    follower = one(2, 1, 10, decoded=0, server={"orch.coalesced": True}, links=(link,))[:1]
    reasons = objections_to(leader, follower, scenario="run-1")
    assert list(reasons) == ["coalesced"]
    assert list(objections_to(leader, follower)) == ["coalesced"]


def test_request_in_parts_makes_no_row_whatever_its_prompts() -> None:
    """The parts of one prompt's choices have it in common."""
    parts = {"orch.parts": 2, "gen_ai.usage.input_tokens": 1, "orch.scenario": "run-1"}
    reasons = objections_to(
        valid("batched_online", 1, 0, 1, server=parts), valid("batched_online", 2, 0.5, 1.5),
        scenario="run-1",
    )  # fmt: skip
    assert [*reasons] == ["divided"]
    assert reasons["divided"].endswith(" to the engine: 1")


def test_unfinished_requests_are_an_objection_to_a_run_at_the_time() -> None:
    run = valid("batched_online", 1, 10, 20)
    _, wait, engine, _ = one(2, 15, 30, sequences=1)
    assert list(objections_to(run, [wait], scenario="run-1")) == ["not_ended"]
    reasons = objections_to(run, [wait, engine], scenario="run-1")
    assert list(reasons) == ["not_ended", "untraced_requests"]
    _, wait, engine, _ = one(2, 1, 5, sequences=1)
    assert objections_to(run, [wait, engine], scenario="run-1") == {}  # it ended before the run
    unassigned = replace(wait, attributes={**wait.attributes, "orch.pool": "another"})
    assert objections_to(run, [unassigned], scenario="run-1") == {}
    _, later, *_ = one(2, 25, 30)
    assert objections_to(run, [later], scenario="run-1") == {}


def test_requests_that_were_not_served_are_no_objection() -> None:
    run = [
        valid("batched_online", 1, 0, 10),
        valid("batched_online", 2, 1, 2, outcome="cancelled"),
        valid("batched_online", 3, 1, 2, outcome="engine_failed"),
        valid("batched_online", 4, 1, 2, outcome="queue_full"),
    ]
    assert objections_to(*run, scenario="run-1") == {}


def test_every_reason_is_documented_and_no_other() -> None:
    table = rows(section(ROOT / "docs/explanation/labels.md", HEADING))
    assert {name for first, *_ in table for name in quoted(first)} == set(Reason)

"""Objections to a scenario: labels, steps, spans and traffic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch_sidecar.tools.facts.labels.judge import Reason
from orch_sidecar.tools.facts.tables.row import Row
from orch_sidecar.tools.facts.traces.spans import Span
from tests.documents import ROOT, quoted, rows, section
from tests.orch_sidecar.tools.facts.objections import (
    LABELS,
    judged,
    objections_to,
    valid,
)
from tests.orch_sidecar.tools.facts.spans import one, real, without

HEADING = "Objections to a measurement"


def test_without_ids_a_real_warmup_is_part_of_the_run() -> None:
    assert isinstance(judged(without(real("home"), "orch.scenario")), Row)


@pytest.mark.parametrize("label", LABELS)
def test_run_that_fits_its_label_has_no_objections(label: str) -> None:
    assert objections_to(valid(label, 1, 0, 1), valid(label, 2, 1, 2)) == {}


def test_requests_that_were_not_served_are_no_objection() -> None:
    failed = ("cancelled", "engine_failed", "queue_full")
    others = [valid("batched_online", n, 1, 2, outcome=each) for n, each in enumerate(failed, 2)]
    assert objections_to(valid("batched_online", 1, 0, 10), *others) == {}


# Parts of one prompt's choices have it in common.
PARTS = {"orch.parts": 2, "gen_ai.usage.input_tokens": 1, "orch.scenario": "run-1"}


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([valid("single_stream", 1, 0, 1.5), valid("single_stream", 2, 1, 2)],
         {"overlap": "1 of 2 sequences arrived while another was in the engine: requests come one "
          "after the other"}),
        ([valid("single_stream", 1, 0, 1, tokens=(10, 1), batch=None)],
         {"no_steps": "the engine reports no decode step in the window"}),
        ([valid("single_stream", 1, 0, 1, tokens=(10, 1), batch=(0, 0, 0.0))],
         {"no_steps": "the engine reports no decode step in the window"}),
        ([valid("batched_online", 1, 0, 1, sequences=3, decoded=2)],
         {"engine_not_traced": "1 request: fewer spans of the engine than sequences"}),
        ([valid("batched_online", 1, 0, 1, server=PARTS), valid("batched_online", 2, 0.5, 1.5)],
         {"divided": "requests ran in parts: their times are those of several requests to the "
          "engine: 1"}),
    ],
)  # fmt: skip
def test_what_a_label_excludes_is_an_objection(
    requests: list[list[Span]], expected: dict[str, str]
) -> None:
    assert objections_to(*requests) == expected


def test_coalesced_request_of_another_run_makes_this_one_shared() -> None:
    leader = valid("batched_online", 1, 0, 10)
    links = (leader[0].link,)
    follower = one(2, 1, 10, decoded=0, server={"orch.coalesced": True}, links=links)[:1]
    for requests in ((leader, follower), (follower, leader)):
        assert list(objections_to(*requests)) == ["coalesced"]


def test_unfinished_requests_are_an_objection_to_a_run_at_the_time() -> None:
    run = valid("batched_online", 1, 10, 20)
    _, wait, engine, _ = one(2, 15, 30, sequences=1)
    assert list(objections_to(run, [wait])) == ["not_ended"]
    assert list(objections_to(run, [wait, engine])) == ["not_ended", "untraced_requests"]
    unassigned = replace(wait, attributes={**wait.attributes, "orch.pool": "another"})
    for other in (one(2, 1, 5, sequences=1)[1:3], [unassigned], one(2, 25, 30)[1:2]):
        assert objections_to(run, other) == {}  # it ended before the run, or began after it


def test_every_reason_is_documented_and_no_other() -> None:
    table = rows(section(ROOT / "docs/explanation/labels.md", HEADING))
    assert {name for first, *_ in table for name in quoted(first)} == set(Reason)

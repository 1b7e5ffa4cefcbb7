"""Foreign sequences in an engine are an objection, traced or visible in the steps only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch_sidecar.tools.facts.labels.measured import Source
from orch_sidecar.tools.facts.tables.row import Row
from orch_sidecar.tools.facts.traces.scenarios import group_scenarios
from orch_sidecar.tools.facts.traces.spans import Span, Value
from orch_sidecar.tools.facts.traces.verdict import judge_scenario
from tests.orch_sidecar.tools.facts.objections import (
    LABELS,
    objections_to,
    valid,
)
from tests.orch_sidecar.tools.facts.spans import one, traffic_from


@pytest.mark.parametrize("label", LABELS)
def test_foreign_requests_in_the_same_engine_are_an_objection(label: str) -> None:
    run = [valid(label, 1, 0, 10), valid(label, 2, 10, 20)]
    meanwhile = valid(label, 3, 4, 5, server={})
    before_and_after = [
        valid(label, 4, -2, -1, server={}),
        valid(label, 5, 21, 22, server={}),
    ]
    assert objections_to(*run, *before_and_after, scenario="run-1") == {}
    reasons = objections_to(*run, *before_and_after, meanwhile, scenario="run-1")
    count = 1 if label == "single_stream" else 2
    expected = f"foreign sequences in the same engine at the time: {count}"
    assert reasons.pop("other_traffic") == expected
    assert reasons == {}


def test_sequence_that_has_no_number_is_one_of_the_engine() -> None:
    """A client of the engine whose span is below no other: the engine cannot number it."""
    run = valid("single_stream", 1, 0, 10)
    *_, stranger = valid("single_stream", 2, 4, 5, server={}, decode={"orch.request_number": None})
    reasons = objections_to(run, [replace(stranger, parent_id=None)], scenario="run-1")
    assert reasons["other_traffic"].endswith("at the time: 1")
    own = valid("single_stream", 1, 0, 10, decode={"orch.request_number": None})
    assert list(objections_to(own, scenario="run-1")) == ["not_counted"]


def test_requests_in_another_engine_are_no_objection() -> None:
    run = valid("offline", 1, 0, 10)
    unassigned = valid("batched_online", 2, 4, 5, server={}, decode={"orch.epoch": "e2"})
    assert objections_to(run, unassigned, scenario="run-1") == {}


def test_warmup_that_overlaps_a_run_is_an_objection() -> None:
    warmup: dict[str, Value] = {"orch.scenario": "run-1.warmup"}
    run = valid("batched_online", 1, 0, 10)
    over = valid("batched_online", 2, -5, -1, server=warmup)
    going_on = valid("batched_online", 3, -5, 1, server=warmup)
    assert objections_to(run, over, scenario="run-1") == {}
    assert list(objections_to(run, going_on, scenario="run-1")) == ["other_traffic"]


def test_aborted_foreign_requests_of_the_same_pool_are_an_objection() -> None:
    """The engine exports no span for them, although it has worked on them."""
    run = valid("offline", 1, 0, 10)

    def given_up(pool: str) -> list[Span]:
        spans = one(2, 4, 5, label="offline", outcome="cancelled", sequences=2)
        placed: dict[str, Value] = {"orch.pool": pool}
        return [replace(span, attributes={**span.attributes, **placed}) for span in spans]

    assert objections_to(run, given_up("pool"), scenario="run-1")["other_traffic"].endswith(": 2")
    assert objections_to(run, given_up("another"), scenario="run-1") == {}


def test_failed_attempt_of_a_foreign_request_is_an_objection() -> None:
    run = valid("offline", 1, 0, 10)
    server, wait, engine, *sequences = valid("offline", 2, 12, 13, server={})
    failed = replace(
        engine,
        span_id="c" * 16,
        start_ns=4 * 10**9,
        end_ns=5 * 10**9,
        attributes={**engine.attributes, "orch.outcome": "engine_failed"},
    )
    assert objections_to(run, [server, wait, engine, *sequences], scenario="run-1") == {}
    reasons = objections_to(run, [server, wait, engine, *sequences, failed], scenario="run-1")
    assert list(reasons) == ["other_traffic"]


def test_aborted_sequence_can_be_in_a_step_a_little_longer() -> None:
    run = [valid("batched_online", 1, 10, 20, batch=(4, 4, 2.5))]

    def left(end_s: float) -> list[Span]:
        return valid("batched_online", 2, 5, end_s, outcome="cancelled")

    assert objections_to(*run, left(15), scenario="run-1") == {}
    assert objections_to(*run, left(9.5), scenario="run-1") == {}
    assert list(objections_to(*run, left(8.5), scenario="run-1")) == ["unseen_traffic"]


def test_requests_before_the_interval_are_not_foreign() -> None:
    traffic = traffic_from(*(valid("batched_online", n, n, n + 3, server={}) for n in range(5)))
    [found] = group_scenarios(traffic, 60.0, first_ns=2 * 10**9, last_ns=3 * 10**9)
    assert (len(found.before), len(found.requests), len(found.after)) == (2, 2, 1)
    assert isinstance(judge_scenario(found, Source("test")), Row)

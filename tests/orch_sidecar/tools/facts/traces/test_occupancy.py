"""Whoever else was in the engine spoils a run, whether traces tell of them or only the steps do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch_sidecar.tools.facts.traces.requests import build_traffic
from orch_sidecar.tools.facts.traces.scenarios import group_scenarios
from orch_sidecar.tools.facts.traces.span import Span, Value
from orch_sidecar.tools.facts.traces.validity import objections
from tests.orch_sidecar.tools.facts.earned import LABELS, against, against_of, earned
from tests.orch_sidecar.tools.facts.spans import one, real, told, without


@pytest.mark.parametrize("label", LABELS)
def test_requests_of_others_in_the_same_engine_spoil_a_run(label: str) -> None:
    run = [earned(label, 1, 0, 10), earned(label, 2, 10, 20)]
    meanwhile = earned(label, 3, 4, 5, server={})
    before_and_after = [earned(label, 4, -2, -1, server={}), earned(label, 5, 21, 22, server={})]
    assert against(*run, *before_and_after, scenario="run-1") == {}
    says = against(*run, *before_and_after, meanwhile, scenario="run-1")
    count = 1 if label == "single_stream" else 2
    expected = f"foreign sequences in the same engine at the time: {count}"
    assert says.pop("other_traffic") == expected
    assert says == {}


def test_requests_in_another_engine_spoil_nothing() -> None:
    run = earned("offline", 1, 0, 10)
    unassigned = earned("batched_online", 2, 4, 5, server={}, decode={"orch.epoch": "e2"})
    assert against(run, unassigned, scenario="run-1") == {}


def test_a_warmup_that_goes_on_spoils_the_run() -> None:
    warmup: dict[str, Value] = {"orch.scenario": "run-1.warmup"}
    run = earned("batched_online", 1, 0, 10)
    over = earned("batched_online", 2, -5, -1, server=warmup)
    going_on = earned("batched_online", 3, -5, 1, server=warmup)
    assert against(run, over, scenario="run-1") == {}
    assert list(against(run, going_on, scenario="run-1")) == ["other_traffic"]


def test_requests_around_the_sidecar_spoil_a_run() -> None:
    run = earned("offline", 1, 0, 10)
    *_, stray = earned("offline", 2, 4, 5)
    says = against(run, [replace(stray, parent_id=None)], scenario="run-1")
    assert list(says) == ["other_traffic"]


def test_requests_of_others_that_were_given_up_spoil_a_run_of_the_same_pool() -> None:
    """The engine makes no span for them, and worked on them all the same."""
    run = earned("offline", 1, 0, 10)

    def given_up(pool: str) -> list[Span]:
        server: dict[str, Value] = {"orch.pool": pool}
        return one(2, 4, 5, label="offline", outcome="cancelled", sequences=2, server=server)

    assert against(run, given_up("pool"), scenario="run-1")["other_traffic"].endswith(": 2")
    assert against(run, given_up("another"), scenario="run-1") == {}


def test_an_attempt_of_others_that_came_to_nothing_spoils_a_run() -> None:
    run = earned("offline", 1, 0, 10)
    server, wait, engine, *sequences = earned("offline", 2, 12, 13, server={})
    failed = replace(
        engine,
        span_id="c" * 16,
        start_ns=4 * 10**9,
        end_ns=5 * 10**9,
        attributes={**engine.attributes, "orch.outcome": "engine_failed"},
    )
    assert against(run, [server, wait, engine, *sequences], scenario="run-1") == {}
    says = against(run, [server, wait, engine, *sequences, failed], scenario="run-1")
    assert list(says) == ["other_traffic"]


def test_where_engines_are_not_told_apart_the_pool_does() -> None:
    run = without(earned("offline", 1, 0, 10), "orch.epoch")
    other = without(earned("offline", 2, 4, 5, server={}), "orch.epoch")
    assert list(against(run, other, scenario="run-1")) == ["other_traffic"]


@pytest.mark.parametrize("label", LABELS)
def test_more_in_a_step_than_anybody_tells_of_spoils_a_run(label: str) -> None:
    """Traces that were sampled, or traffic around the sidecar that nobody traced."""
    run = [earned(label, 1, 0, 10), earned(label, 2, 10.5, 20, batch=(4, 3, 2.5))]
    count = 1 if label == "single_stream" else 2
    says = f"sequences that shared a step with untraced ones (tracing must not sample): {count}"
    assert against(*run, scenario="run-1")["unseen_traffic"] == says


def test_who_left_may_have_been_in_a_step_for_a_moment_more() -> None:
    run = [earned("batched_online", 1, 10, 20, batch=(4, 4, 2.5))]

    def left(end_s: float) -> list[Span]:
        return earned("batched_online", 2, 5, end_s, outcome="cancelled")

    assert against(*run, left(15), scenario="run-1") == {}
    assert against(*run, left(9.5), scenario="run-1") == {}
    assert list(against(*run, left(8.5), scenario="run-1")) == ["unseen_traffic"]


def test_every_real_step_is_told_of() -> None:
    """Of those whose sequences met in one engine, with one trace left out it shows."""
    spans = real("cloud")
    for left_out in {span.trace_id for span in spans}:
        fewer = [span for span in spans if span.trace_id != left_out]
        assert list(against_of(build_traffic(fewer), "cloud-1")) == ["unseen_traffic"]


def test_what_came_before_the_interval_is_not_of_others() -> None:
    traffic = told(*(earned("batched_online", n, n, n + 2, server={}) for n in range(5)))
    [found] = group_scenarios(traffic, 60.0, first_ns=2 * 10**9, last_ns=3 * 10**9).scenarios
    assert (len(found.before), len(found.requests), len(found.after)) == (2, 2, 1)
    assert objections(found, traffic) == []

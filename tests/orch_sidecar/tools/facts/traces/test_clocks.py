"""Clocks of sidecar and engine that differ by milliseconds, as those of two hosts do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch_sidecar.tools.facts.labels.measured import Source
from orch_sidecar.tools.facts.tables.row import Row
from orch_sidecar.tools.facts.traces.requests import build_traffic
from orch_sidecar.tools.facts.traces.scenarios import group_scenarios
from orch_sidecar.tools.facts.traces.spans import Span, read_file
from orch_sidecar.tools.facts.traces.verdict import judge_scenario
from tests.orch_sidecar.tools.facts.objections import objections_to, valid
from tests.orch_sidecar.tools.facts.spans import TRACES

SKEWS_MS = (-300, -50, -5, 5, 50, 300)


def ahead(spans: list[Span], ms: float) -> list[Span]:
    """The spans where the engine's clock is ahead of the sidecar's."""
    by_ns = round(ms * 1e6)
    return [
        replace(span, start_ns=span.start_ns + by_ns, end_ns=span.end_ns + by_ns)
        if span.name == "llm_request"
        else span
        for span in spans
    ]


@pytest.mark.parametrize("name", ["home", "cloud", "offline"])
@pytest.mark.parametrize("ms", SKEWS_MS)
def test_runs_are_apart_from_their_warm_up_whatever_the_clocks_differ_by(
    name: str, ms: float
) -> None:
    path = TRACES / "counted" / f"{name}.jsonl"
    traffic = build_traffic(ahead(read_file(path.name, path.read_bytes()), ms))
    for scenario in group_scenarios(traffic, 60.0):
        assert isinstance(judge_scenario(scenario, Source("test")), Row)
        # As far as its requests show it: they take a little longer than their sequences.
        assert scenario.engine_ahead_ns / 1e6 == pytest.approx(ms, abs=5)


@pytest.mark.parametrize("ms", SKEWS_MS)
@pytest.mark.parametrize("label", ["single_stream", "batched_online"])
def test_sequence_of_others_at_the_time_shows_whatever_the_clocks_differ_by(
    label: str, ms: float
) -> None:
    other = ahead(valid(label, 1, 9.0, 10.01, server={}), ms)
    own = ahead(valid(label, 2, 10.0, 12.0), ms)
    assert "other_traffic" in objections_to(own, other)
    earlier = ahead(valid(label, 1, 9.0, 9.999, server={}), ms)
    assert "other_traffic" not in objections_to(own, earlier)


def test_clocks_are_taken_for_equal_unless_they_cannot_be() -> None:
    spans = [*valid("single_stream", 1, 1.0, 2.0), *valid("single_stream", 2, 3.0, 4.0)]
    for ms in (0.0, 0.5):
        slow = [
            replace(span, end_ns=span.end_ns + 1_000_000) if span.parent_id is None else span
            for span in spans
        ]
        [scenario] = group_scenarios(build_traffic(ahead(slow, ms)), 60.0)
        assert scenario.engine_ahead_ns == 0
    early, late = ahead(spans[:4], -50), ahead(spans[4:], 50)
    [scenario] = group_scenarios(build_traffic([*early, *late]), 60.0)
    assert scenario.engine_ahead_ns == 0  # no single difference explains both

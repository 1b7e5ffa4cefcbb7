"""Objections to scenarios, for tests."""

from __future__ import annotations

from orch_sidecar.tools.facts.labels.judge import Objection
from orch_sidecar.tools.facts.labels.measured import Source
from orch_sidecar.tools.facts.tables.row import Row
from orch_sidecar.tools.facts.traces.scenarios import group_scenarios
from orch_sidecar.tools.facts.traces.spans import Span, Value
from orch_sidecar.tools.facts.traces.verdict import judge_scenario
from tests.orch_sidecar.tools.facts.spans import one, traffic_from

ALONE = (4, 1, 1.0)
RUN: dict[str, Value] = {"orch.scenario": "run-1"}
LABELS = ("single_stream", "batched_online", "offline")


# What a label requires of the load, and a table of a row: single requests, of which most of these
# tests are made, have none. `test_observation` and `test_scenario_row` have the tests of it.
LOAD = {"one_by_one", "mostly_alone", "trickle", "batch_not_full", "unsound_row"}


def judged(*requests: list[Span], given: Source | None = None) -> Row | list[Objection]:
    """Judges the scenario of the first of these requests."""
    own = requests[0][0].trace_id
    [scenario] = [
        each
        for each in group_scenarios(traffic_from(*requests), 60.0)
        if own in {request.link.trace_id for request in each.requests}
    ]
    return judge_scenario(scenario, given or Source("test"))


def objections_to(*requests: list[Span]) -> dict[str, str]:
    """Returns the objections to the scenario of the first request, but for those to its load."""
    verdict = judged(*requests)
    found = [] if isinstance(verdict, Row) else verdict
    assert len({each.reason for each in found}) == len(found)
    return {each.reason.value: each.detail for each in found if each.reason not in LOAD}


def valid(label: str, number: int, start_s: float, end_s: float, **more: object) -> list[Span]:
    """Returns a request without objections to it."""
    single = label == "single_stream"
    defaults: dict[str, object] = {
        "label": label,
        "batch": ALONE if single else (4, 2, 1.5),
        "sequences": 1 if single else 2,
        "server": {"orch.class": "bulk", **RUN} if label == "offline" else RUN,
    }
    return one(number, start_s, end_s, **{**defaults, **more})  # type: ignore[arg-type]

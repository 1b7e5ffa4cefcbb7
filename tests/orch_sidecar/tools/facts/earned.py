"""What speaks against scenarios, for tests."""

from __future__ import annotations

from orch_sidecar.tools.facts.traces.requests import Traffic
from orch_sidecar.tools.facts.traces.scenarios import group_scenarios
from orch_sidecar.tools.facts.traces.span import Span, Value
from orch_sidecar.tools.facts.traces.validity import objections
from tests.orch_sidecar.tools.facts.spans import one, told

ALONE = (4, 1, 1.0)
RUN: dict[str, Value] = {"orch.scenario": "run-1"}
LABELS = ("single_stream", "batched_online", "offline")


def against(*requests: list[Span], scenario: str | None = None) -> dict[str, str]:
    """What speaks against the scenario of that id."""
    return against_of(told(*requests), scenario)


def against_of(traffic: Traffic, scenario: str | None) -> dict[str, str]:
    [found] = [s for s in group_scenarios(traffic, 60.0).scenarios if s.key.scenario == scenario]
    said = objections(found, traffic)
    assert len({each.reason for each in said}) == len(said)
    return {each.reason.value: each.detail for each in said}


def earned(label: str, number: int, start_s: float, end_s: float, **more: object) -> list[Span]:
    """A request that nothing speaks against."""
    single = label == "single_stream"
    defaults: dict[str, object] = {
        "label": label,
        "batch": ALONE if single else (4, 2, 1.5),
        "sequences": 1 if single else 2,
        "server": {"orch.class": "bulk", **RUN} if label == "offline" else RUN,
    }
    return one(number, start_s, end_s, **{**defaults, **more})  # type: ignore[arg-type]

"""Whether saved states of an engine are of the time of a run."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.tools.facts.labels.judge import Reason, judge
from orch_sidecar.tools.facts.labels.observation import RunTimes, States, observed
from orch_sidecar.tools.facts.tables.row import Label
from tests.orch_sidecar.tools.facts.snapshots import snapshot

NOON_S = 1795262400.0  # 2026-11-21T12:00:00Z
# A run of 20 s, during which the engine was busy for 19.
RUN: dict[str, Any] = {"window_s": 20.0, "began_at_s": NOON_S + 2.0, "ended_at_s": NOON_S + 22.0}


def judged(run: dict[str, Any], **before: Any) -> str:
    first = snapshot(**{"busy_seconds_total": 1.0, "observed_at": "2026-11-21T12:00:00Z"} | before)
    last = snapshot(busy_seconds_total=20.0, observed_at="2026-11-21T12:00:25Z")
    own: dict[str, Any] = {"sent": 20, "answered": 20, "times": RunTimes(**RUN | run)}
    seen = observed(Label.BATCHED_ONLINE, States(first, last), **own)
    return "; ".join(each.detail for each in judge(seen) if each.reason is Reason.OTHER_TIME)


def test_states_from_before_and_after_the_run_are_fresh() -> None:
    assert judged({}) == ""


@pytest.mark.parametrize("zone_s", [0, 3600, -5 * 3600, 19800, 50400])
def test_local_end_is_compared_in_every_time_zone(zone_s: int) -> None:
    unknown = {"began_at_s": None, "ended_at_s": None}
    assert judged(unknown | {"local_end_s": NOON_S + 23.0 + zone_s}) == ""
    for later_s in (200.0, 86400 + 23.0):
        found = judged(unknown | {"local_end_s": NOON_S + later_s + zone_s})
        assert "in some time zone" in found


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ({"age_ms": 5_000}, "the state before the run was 5000 ms old"),
        ({"state": "draining"}, "the engine was draining before the run"),
    ],
)
def test_state_before_of_another_time_is_named(states: dict[str, Any], reason: str) -> None:
    assert reason in judged({}, **states)

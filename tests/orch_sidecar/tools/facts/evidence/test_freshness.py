"""Whether saved states of an engine are of the time of a run."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.tools.facts.evidence.freshness import staleness
from orch_sidecar.tools.facts.evidence.imported import ImportedRun
from orch_sidecar.tools.facts.labels.figures import Totals
from orch_sidecar.tools.facts.tables.notes import Arrivals
from tests.orch_sidecar.tools.facts.snapshots import snapshot

NOON_S = 1795262400.0  # 2026-11-21T12:00:00Z


def run(window_s: float = 20.0, **changes: Any) -> ImportedRun:
    """A run of 20 s, during which the engine was busy for 19."""
    values: dict[str, Any] = {
        "tool": "vllm bench serve", "model": "tiny", "claim": None, "arrivals": Arrivals.POISSON,
        "rate_per_s": 1.0, "at_once": None, "failed": 0, "latency_ms": {},
        "began_at_s": NOON_S + 2.0, "ended_at_s": NOON_S + 22.0,
    }  # fmt: skip
    totals = Totals(
        requests=20, window_s=window_s, input_tokens=640, output_tokens=640, tokens_per_s=32.0
    )
    return ImportedRun(totals=totals, **values | changes)


def judged(measured: ImportedRun, after: dict[str, Any] | None = None, **before: Any) -> str:
    first = snapshot(**{"busy_seconds_total": 1.0, "observed_at": "2026-11-21T12:00:00Z"} | before)
    last = {"busy_seconds_total": 20.0, "observed_at": "2026-11-21T12:00:25Z"}
    return "; ".join(staleness(measured, first, snapshot(**last | (after or {}))))


def test_states_from_before_and_after_the_run_are_fresh() -> None:
    assert judged(run()) == ""


@pytest.mark.parametrize("zone_s", [0, 3600, -5 * 3600, 19800, 50400])
def test_local_end_is_compared_in_every_time_zone(zone_s: int) -> None:
    times: dict[str, Any] = {"began_at_s": None, "ended_at_s": None}
    assert judged(run(**times, local_end_s=NOON_S + 23.0 + zone_s)) == ""
    assert "in some time zone" in judged(run(**times, local_end_s=NOON_S + 200.0 + zone_s))
    next_day_s = NOON_S + 86400 + 23.0
    assert "in some time zone" in judged(run(**times, local_end_s=next_day_s))


@pytest.mark.parametrize(
    ("measured", "states", "reason"),
    [
        (run(), {"age_ms": 5_000}, "the state before the run was 5000 ms old"),
        (run(), {"state": "draining"}, "the engine was draining before the run"),
    ],
)
def test_state_before_of_another_time_is_named(
    measured: ImportedRun, states: dict[str, Any], reason: str
) -> None:
    assert reason in judged(measured, **states)

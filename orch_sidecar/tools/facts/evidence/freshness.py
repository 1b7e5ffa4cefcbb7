"""Judges whether two saved states of an engine are of the time of a run, by every clock there is.

Pure. The states and the run come from different files, which somebody put together. The engine
counts its own busy seconds: a run cannot be shorter than the work that the engine did in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from orch_sidecar.tools.facts.evidence.imported import ImportedRun
from orch_sidecar.tools.facts.labels.snapshot import Snapshot
from orch_sidecar.tools.facts.labels.thresholds import (
    BUSY_S,
    BUSY_SHARE,
    CLOCKS_AGREE_S,
    MOST_AGE_S,
)

# To which a file's date is rounded.
_DATE_S: Final = 1.0
# Offsets of time zones from UTC are multiples of a quarter of an hour, up to 14 hours.
_ZONE_S: Final = 900.0
_MOST_ZONES: Final = 56


def staleness(run: ImportedRun, before: Snapshot, after: Snapshot) -> list[str]:
    """Returns the reasons why the states are not those from before and after the run."""
    reasons = []
    for when, state in (("before", before), ("after", after)):
        if state.state != "ready":
            reasons.append(f"the engine was {state.state} {when} the run: it must be ready")
        if state.age_ms > 1000 * MOST_AGE_S:
            reasons.append(
                f"the state {when} the run was {state.age_ms} ms old when it was saved: at most "
                f"{1000 * MOST_AGE_S:g} ms are allowed"
            )
    reasons += _window(run, before, after)
    busy_s, window_s = after.busy_s - before.busy_s, run.totals.window_s
    most_s = window_s * (1 + BUSY_SHARE) + BUSY_S
    if busy_s > most_s:
        reasons.append(
            f"the engine was busy for {busy_s:.1f} s, but the run took {window_s:.1f} s: its "
            "times are wrong, or the states are those of another run"
        )
    return [*reasons, *_times(run, before, after)]


def _window(run: ImportedRun, before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Finds states that are closer together than the run was long."""
    apart_s, window_s = after.observed_at_s - before.observed_at_s, run.totals.window_s
    if window_s > apart_s + CLOCKS_AGREE_S:
        yield (
            f"the states are {apart_s:.1f} s apart, but the run took {window_s:.1f} s: one of "
            "them was saved during the run, or they are those of another run"
        )


def _times(run: ImportedRun, before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Finds states that are not from before the run's start and after its end."""
    if run.began_at_s is not None and before.observed_at_s > run.began_at_s + CLOCKS_AGREE_S:
        at = f"{_utc(before.observed_at_s)}, the run began at {_utc(run.began_at_s)}"
        yield f"the state before the run is from {at}"
    if run.ended_at_s is not None and after.observed_at_s < run.ended_at_s - CLOCKS_AGREE_S:
        at = f"{_utc(after.observed_at_s)}, the run ended at {_utc(run.ended_at_s)}"
        yield f"the state after the run is from {at}"
    if run.local_end_s is None:
        return
    slack_s = CLOCKS_AGREE_S + _DATE_S
    first_s, last_s = (
        before.observed_at_s + run.totals.window_s - slack_s,
        after.observed_at_s + slack_s,
    )
    zones = (run.local_end_s - _ZONE_S * zone for zone in range(-_MOST_ZONES, _MOST_ZONES + 1))
    if not any(first_s <= end_s <= last_s for end_s in zones):
        local = f"{datetime.fromtimestamp(run.local_end_s, UTC):%Y-%m-%d %H:%M:%S}"
        yield (
            f"the run ended at {local} in some time zone, which in none is between the states, "
            f"from {_utc(before.observed_at_s)} and {_utc(after.observed_at_s)}"
        )


def _utc(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"

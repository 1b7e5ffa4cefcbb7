"""Runs of `orch bench` that did not earn their label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.results.result import row_of
from orch_sidecar.tools.facts.tables.notes import Arrivals
from tests.orch_sidecar.tools.bench.sample_results import OFFLINE, ONLINE, SINGLE, in_a_row, result
from tests.orch_sidecar.tools.facts.cheats import Cheat, Gate, said_of
from tests.orch_sidecar.tools.facts.cheats.imports import CONDITIONS
from tests.orch_sidecar.tools.facts.snapshots import home, snapshot

CALLS, AT_ONCE = in_a_row(10), in_a_row(10, 0.0)
CLOSED = replace(ONLINE, arrivals=Arrivals.CLOSED_LOOP, rate_per_s=None, clients=4)
ALONE = replace(CLOSED, clients=1)
STEPS = {"1": [20, 0.2], "4": [20, 0.4]}
DONE = {"requests_total": 110, "steps_by_batch": STEPS}
OFFLINE_DONE = DONE | {"measurement_type": "offline", "profile": "offline", "pool": "offline"}
RUNS: Final[tuple[tuple[str, Scenario, Mapping[str, Any], str], ...]] = (
    ("a second client", CLOSED, DONE | {"requests_total": 111}, "served other clients"),
    ("coalesced answers", CLOSED, DONE | {"requests_total": 109}, "were shared (coalesced)"),
    ("an engine that was killed", CLOSED, DONE | {"epoch": "e2"}, "was restarted"),
    ("another profile", CLOSED, DONE | {"profile": "offline"}, "the profile changed"),
    ("another slot", CLOSED, DONE | {"slots_total": 9}, "the number of slots changed"),
    (
        "strangers afterwards",
        CLOSED,
        DONE | {"foreign": 1},
        "sequences in the engine after the measurement: 1 foreign",
    ),
    ("more decoded", CLOSED, DONE | {"steps_by_batch": {"4": [60, 1]}}, "decoded at least 220"),
    ("nothing batched", CLOSED, DONE | {"steps_by_batch": {"1": [90, 1]}}, "nothing was batched"),
    ("single on cloud", SINGLE, DONE | {"pool": "home"}, "decoded up to 4 sequences"),
    ("one by one, n=4", ALONE, DONE, "the requests came one by one"),
    ("offline with empty slots", OFFLINE, OFFLINE_DONE, "offline needs a batch of 8"),
    ("drafts from now on", CLOSED, DONE | {"conditions": CONDITIONS}, "configuration changed"),
    ("other weights", CLOSED, DONE | {"weights": "/models/b"}, "configuration changed"),
)


def said(scenario: Scenario, after: Mapping[str, Any]) -> Mapping[Gate, str]:
    calls = AT_ONCE if scenario is OFFLINE else CALLS
    engine = home if scenario is SINGLE else snapshot
    found = result(calls, scenario, after=engine(**after))
    try:
        return said_of(row_of(found))
    except ValueError:
        return {Gate.JUDGE: "; ".join(found.reasons)}


CHEATS = [
    Cheat(name, {Gate.JUDGE: reason}, partial(said, scenario, after))
    for name, scenario, after, reason in RUNS
]

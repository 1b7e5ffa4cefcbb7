"""Whether a label was earned, and the reasons if not; whether saved states are of a run's time."""

from __future__ import annotations

from typing import Any

import pytest

from orch_sidecar.tools.facts.labels import judge as judging
from orch_sidecar.tools.facts.labels.figures import Totals
from orch_sidecar.tools.facts.labels.intervals import Interval
from orch_sidecar.tools.facts.labels.judge import Reason, cannot_earn
from orch_sidecar.tools.facts.labels.observation import Run, States, observed
from orch_sidecar.tools.facts.labels.snapshot import Snapshot
from orch_sidecar.tools.facts.tables.publication import shortfalls
from orch_sidecar.tools.facts.tables.row import Label
from tests.orch_sidecar.tools.facts.snapshots import home, snapshot

SINGLE, ONLINE, OFFLINE = Label.SINGLE_STREAM, Label.BATCHED_ONLINE, Label.OFFLINE
OWN: dict[str, Any] = {"sent": 10, "answered": 10}
ONE_BY_ONE = {"1": [90, 0.9]}
BATCHED = {"1": [10, 0.1], "4": [25, 0.5], "6": [10, 0.3]}


def judge(
    label: Label, before: Snapshot, after: Snapshot, own: dict[str, Any] = OWN, **more: Any
) -> str:
    seen = observed(label, States(before, after), **own, **more)
    return "; ".join(each.detail for each in judging.judge(seen))


def objections(label: Label, engine: Snapshot) -> str:
    return "; ".join(each.detail for each in cannot_earn(label, engine))


def test_single_stream_is_earned_on_one_slot_and_one_at_a_time() -> None:
    assert judge(SINGLE, home(), home(requests_total=110, steps_by_batch=ONE_BY_ONE)) == ""


def test_batched_online_is_earned_by_steps_of_more_than_one() -> None:
    after = snapshot(requests_total=110, steps_by_batch=BATCHED)
    assert judge(ONLINE, snapshot(), after) == ""
    found = States(snapshot(), after).batches
    assert (found.steps, found.largest) == (30, 6)
    assert found.mean == pytest.approx((20 * 4 + 10 * 6) / 30)


def test_offline_is_earned_alone_on_an_offline_engine() -> None:
    before = snapshot(profile="offline", measurement_type="offline")
    after = snapshot(
        profile="offline",
        measurement_type="offline",
        requests_total=110,
        steps_by_batch=BATCHED | {"8": [10, 0.3]},
    )
    assert judge(OFFLINE, before, after) == ""
    crowded = OWN | {"sent": 9, "answered": 9}
    assert "the engine accepted 10 requests in the window, but this measurement sent 9" in judge(
        OFFLINE, before, after, crowded
    )


def test_label_that_the_pool_does_not_have_is_an_objection() -> None:
    for label in (SINGLE, OFFLINE):
        assert f"a measurement of it cannot be {label}" in objections(label, snapshot())
    assert objections(ONLINE, snapshot()) == objections(SINGLE, home()) == ""
    unknown = snapshot(measurement_type="to_be_confirmed")
    assert "not the label of a measurement" in objections(Label.TO_BE_CONFIRMED, unknown)


def test_slots_must_fit_the_label() -> None:
    assert "one slot, this one has 2" in objections(SINGLE, home(slots_total=2))
    assert "more than one slot" in objections(ONLINE, snapshot(slots_total=1))


def test_more_decoded_than_received_means_other_clients() -> None:
    """20 steps of four and 10 of six: at least 140 tokens."""
    after = snapshot(requests_total=110, steps_by_batch=BATCHED)
    assert judge(ONLINE, snapshot(), after, OWN | {"output_tokens": 140}) == ""
    assert judge(ONLINE, snapshot(), after) == ""
    found = judge(ONLINE, snapshot(), after, OWN | {"output_tokens": 139})
    assert found.startswith("the engine decoded at least 140 tokens in the window, of which at")


@pytest.mark.parametrize("when", ["before", "after"])
def test_sequences_in_the_engine_at_either_end_are_detected(when: str) -> None:
    counts = {when: {"leased": 2, "foreign": 1}}
    before = snapshot(**counts.get("before", {}))
    after = snapshot(requests_total=110, steps_by_batch=BATCHED, **counts.get("after", {}))
    expected = f"sequences in the engine {when} the measurement: 1 foreign, 2 of its own sidecar"
    assert judge(ONLINE, before, after) == expected


def test_window_without_a_decode_step_is_invalid() -> None:
    after = snapshot(requests_total=110)
    assert "no decode step" in judge(ONLINE, snapshot(), after)


@pytest.mark.parametrize(
    ("label", "queries", "seconds", "missing"),
    [
        (SINGLE, 64, 600.0, 0),
        (SINGLE, 63, 600.0, 1),
        (ONLINE, 661, 599.0, 2),
        (ONLINE, 662, 600.0, 0),
        (OFFLINE, 1, 600.0, 0),
    ],
)
def test_shortfalls_of_a_publishable_run_are_listed(
    label: Label, queries: int, seconds: float, missing: int
) -> None:
    assert len(shortfalls(label, queries, seconds)) == missing


def in_turn(count: int, sequences: int, pairs: int = 1) -> list[Interval]:
    """Requests for so many sequences, one after the other, and then some two at a time."""
    alone = [Interval(at, at + 1, sequences) for at in range(count)]
    return alone + [Interval(count + at, count + at + 1) for at in range(pairs) for _ in range(2)]


@pytest.mark.parametrize(
    ("label", "requests", "steps"),
    [
        (ONLINE, in_turn(5, 4), {"1": [10, 0.1], "4": [105, 0.1]}),  # n=4 one by one, and a pair
        (OFFLINE, in_turn(5, 16), {"1": [10, 0.1], "4": [5, 0.1], "8": [95, 0.1]}),  # n=16, and two
        (ONLINE, in_turn(30, 1), {"1": [310, 3.1], "2": [10, 0.1], "4": [5, 0.1]}),
    ],
)
def test_one_overlap_earns_no_batched_label(
    label: Label, requests: list[Interval], steps: dict[str, Any]
) -> None:
    own = {"profile": "offline", "measurement_type": "offline"} if label is OFFLINE else {}
    after = snapshot(requests_total=100 + len(requests), steps_by_batch=steps, **own)
    counts = {"sent": len(requests), "answered": len(requests)}
    found = judge(label, snapshot(**own), after, counts, in_flight=requests)
    assert "of the decode steps, or of their time, had sequences of several requests" in found


def test_steps_count_where_nobody_knows_when_requests_were_in_flight() -> None:
    steps = {"1": [110, 3.1], "2": [60, 0.1], "4": [5, 0.1]}
    after = snapshot(requests_total=110, steps_by_batch=steps)
    assert "38% of the decode steps" in judge(ONLINE, snapshot(), after)
    shared = snapshot(requests_total=110, steps_by_batch=steps | {"2": [100, 0.1]})
    assert judge(ONLINE, snapshot(), shared) == ""


NOON_S = 1795262400.0  # 2026-11-21T12:00:00Z
# A run of 20 s, during which the engine was busy for 19.
RUN: dict[str, Any] = {"began_at_s": NOON_S + 2.0, "ended_at_s": NOON_S + 22.0}
TOTALS = Totals(requests=20, window_s=20.0, input_tokens=20, output_tokens=20)


def judged(run: dict[str, Any], **before: Any) -> str:
    first = snapshot(**{"busy_seconds_total": 1.0, "observed_at": "2026-11-21T12:00:00Z"} | before)
    last = snapshot(busy_seconds_total=20.0, observed_at="2026-11-21T12:00:25Z")
    made = Run(model="m", totals=TOTALS, **RUN | run)
    own: dict[str, Any] = {"sent": 20, "answered": 20, "run": made}
    found = judging.judge(observed(ONLINE, States(first, last), **own))
    return "; ".join(each.detail for each in found if each.reason is Reason.OTHER_TIME)


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

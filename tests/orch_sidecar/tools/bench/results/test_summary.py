"""What calls come to: figures, the verdict on a run, and its result as a file."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from orch_sidecar.tools.bench.load.call import Call, Fate
from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.results.result import CALL_COLUMNS, Result, Status
from orch_sidecar.tools.bench.results.summary import (
    result_of,
)
from orch_sidecar.tools.facts.tables.row import Label
from tests.orch_sidecar.tools.bench.sample_results import (
    HOST,
    OFFLINE,
    ONLINE,
    SINGLE,
    answered,
    in_a_row,
    refused,
    result,
    unverified,
)
from tests.orch_sidecar.tools.facts.snapshots import snapshot

# A TTFT of 100 ms; 11 tokens, the last 200 ms after the request.
TEN = in_a_row(10)
LAST = answered(0.0, first_s=9.9)


def test_figures_are_those_of_the_window_from_first_arrival_to_last_end() -> None:
    found = result(TEN)
    assert found.figures is not None
    assert found.gaps_s is not None
    assert found.figures.window_s == pytest.approx(1.1)
    assert found.tokens_per_s == pytest.approx(110 / 1.1)
    totals = (found.figures.requests, found.figures.input_tokens, found.figures.output_tokens)
    assert totals == (10, 320, 110)
    p50 = {name: each.p50 for name, each in found.figures.times_s.items() if each is not None}
    assert p50 == pytest.approx({"ttft": 0.1, "tpot": 0.01, "latency": 0.2})
    assert found.gaps_s.most == pytest.approx(0.01)


def test_goodput_is_of_all_that_were_sent_and_not_of_all_that_were_answered() -> None:
    slow = [answered(1.0, first_s=0.3), answered(1.0, first_s=0.3)]
    turned_away = [refused(0.5) for _ in range(8)]
    found = result([*TEN, *slow, *turned_away], replace(ONLINE, slo_ms={"ttft": 200.0})).goodput
    assert found is not None
    assert (found.requests, found.share) == (10, 0.5)
    assert result(TEN).goodput is None, "without a bound"


def test_requests_are_counted_by_their_fate_and_the_reasons_by_how_often() -> None:
    calls = [
        *TEN,
        refused(0.0),
        refused(0.0),
        refused(0.0, "too_late"),
        Call(due_s=1.0, sent_s=1.0, ended_s=2.0, fate=Fate.CUT),
        Call(due_s=1.0, fate=Fate.CUT),
        answered(0.0, length_as_requested=False),
        answered(0.0, counted_by_events=True),
    ]
    found = result(calls).counts
    assert (found.sent, found.answered, found.refused, found.cut) == (16, 12, 3, 2)
    assert found.reasons == {"queue_full": 2, "too_late": 1}
    assert (found.of_other_length, found.counted_by_events) == (1, 1)
    many = [refused(0.0, f"reason {number}") for number in range(100)]
    assert len(result(many).counts.reasons) == 20, "the most frequent ones"


LOOKS = (0.0,) * 199


@pytest.mark.parametrize(
    ("calls", "client", "causes"),
    [
        (TEN, {}, []),
        ([answered(0.0, sent_s=0.02)], {}, ["requests were sent 20.0 ms late (p99)"]),
        (TEN, {"lag_s": (0.03,)}, ["its event loop woke 30.0 ms late (p99)"]),
        (TEN, {"cpu_share": 0.97}, ["it used 97% of one core"]),
        # Of 10 s, a hundredth, and once in 200 looks: no percentile would tell.
        ([answered(0.0), LAST], {"lag_s": (*LOOKS, 0.09)}, []),
        ([answered(0.0), LAST], {"lag_s": (*LOOKS, 0.11)},
         ["its event loop was blocked for 110.0 ms"]),
    ],
)  # fmt: skip
def test_slow_client_is_reported_as_the_bottleneck(
    calls: list[Call], client: dict[str, Any], causes: list[str]
) -> None:
    found = result(calls, **client).client
    assert (found.bottleneck, found.host) == (causes, HOST)


def test_sending_all_at_once_may_take_a_hundredth_of_the_whole() -> None:
    """10 s of answers: 90 ms of sending are little, 110 ms are not."""
    for late_s, causes in ((0.09, 0), (0.11, 1)):
        calls = [LAST, *(answered(0.0, sent_s=late_s) for _ in range(50))]
        assert len(result(calls, OFFLINE).client.bottleneck) == causes
        assert len(result(calls).client.bottleneck) == 1


LONG = in_a_row(700, every_s=1.0, first_s=2.0)
NEVER_BATCHED = {"1": [90, 0.9]}


def test_run_that_is_long_enough_is_valid() -> None:
    found = result(LONG)
    assert (found.status, found.reasons, found.shortfalls) == (Status.VALID, [], [])
    assert found.batches is not None
    assert (found.batches.steps, found.batches.largest) == (30, 6)


@pytest.mark.parametrize(
    ("scenario", "calls", "missing"),
    [
        (ONLINE, in_a_row(10, every_s=100.0, first_s=200.0),
         ["10 queries, MLPerf's estimate of the 99th percentile takes at least 662"]),
        (ONLINE, in_a_row(700), ["70.1 s, MLPerf's minimum duration is 600 s"]),
        (SINGLE, in_a_row(63, every_s=10.0, due=False),
         ["63 queries, MLPerf's estimate of the 90th percentile takes at least 64"]),
        (SINGLE, in_a_row(64, every_s=10.0, due=False), []),
        (replace(OFFLINE, least_seconds=5.0), TEN,
         ["1.1 s, MLPerf's minimum duration is 600 s",
          "1.1 s instead of the requested 5 s: raise --requests"]),
        (replace(OFFLINE, least_seconds=600.0), TEN, ["1.1 s, MLPerf's minimum duration is 600 s"]),
    ],
)  # fmt: skip
def test_shorter_run_is_preliminary_with_its_shortfalls(
    scenario: Scenario, calls: list[Call], missing: list[str]
) -> None:
    found = result(calls, scenario)
    assert found.shortfalls == missing
    if scenario.label is not Label.OFFLINE:  # of which not everything was there at once
        assert found.status is (Status.PRELIMINARY if missing else Status.VALID)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ({"requests_total": 111}, "the engine served other clients"),
        ({"requests_total": 109}, "answers were shared (coalesced)"),
        ({"epoch": "e2"}, "the engine was restarted"),
        ({"profile": "offline"}, "the profile changed"),
        ({"steps_by_batch": NEVER_BATCHED}, "nothing was batched"),
    ],
)
def test_label_that_was_not_earned_is_invalid_and_keeps_its_name(
    after: dict[str, Any], reason: str
) -> None:
    changes: dict[str, Any] = {"requests_total": 110, "steps_by_batch": {"4": [25, 0.5]}}
    found = result(TEN, after=snapshot(**changes | after))
    assert found.status is Status.INVALID
    assert reason in "; ".join(found.reasons)
    assert found.measurement_type is ONLINE.label
    found = result(LONG, idle_after=False)
    assert found.status is Status.INVALID
    assert found.reasons == ["the engine was not idle after the run: it also served other requests"]


def test_more_decoded_than_was_generated_is_seen_unless_something_is_not_known() -> None:
    changes: dict[str, Any] = {"requests_total": 110, "steps_by_batch": {"4": [33, 0.5]}}
    found = result(TEN, after=snapshot(**changes))
    expected = (
        "the engine decoded at least 112 tokens in the window, of which at most 110 are of this"
    )
    assert [reason[: len(expected)] for reason in found.reasons] == [expected]
    cut = Call(due_s=1.0, sent_s=1.0, ended_s=1.1, fate=Fate.CUT)
    for unknown in (cut, answered(1.0, counted_by_events=True)):
        changes["requests_total"] = 111
        assert result([*TEN, unknown], after=snapshot(**changes)).reasons == []
    assert len(result([*TEN, refused(1.0)], after=snapshot(**changes)).reasons) == 2


@pytest.mark.parametrize("away", [refused(1.0), Call(due_s=1.0, ended_s=1.0, fate=Fate.FAILED)])
def test_what_never_reached_the_engine_hides_no_request_of_others(away: Call) -> None:
    steps = {"4": [20, 0.5]}
    assert result([*TEN, away]).status is Status.PRELIMINARY
    found = result([*TEN, away], after=snapshot(requests_total=111, steps_by_batch=steps))
    assert found.reasons == [
        "the engine accepted 11 requests in the window, but this measurement sent 10: "
        "the engine served other clients, too"
    ]
    assert found.counts.sent == 10 + (away.sent_s is not None)


def test_engine_that_is_unreadable_afterwards_makes_it_invalid_and_keeps_the_figures() -> None:
    found = result(TEN, after=None, unread_reason="it is down")
    assert found.status is Status.INVALID
    assert found.reasons == ["the engine's work is unknown: it is down"]
    assert found.batches is None
    assert found.figures is not None
    assert found.engine.epoch == "e1"


def test_interrupted_run_is_incomplete_whatever_else_it_is() -> None:
    cut = Call(due_s=1.0, sent_s=1.0, ended_s=1.1, fate=Fate.CUT)
    found = result([*TEN, cut], stopped=True, after=snapshot(epoch="e2"))
    assert found.status is Status.INCOMPLETE
    assert found.reasons == ["the user interrupted the run", "the engine was restarted"]
    assert (found.counts.sent, found.counts.cut) == (11, 1)


def test_nothing_answered_is_invalid_and_has_no_figures() -> None:
    found = result([refused(0.0)], replace(SINGLE, slo_ms={"ttft": 1.0}))
    assert found.status is Status.INVALID
    assert "no request was answered completely" in found.reasons
    assert (found.figures, found.tokens_per_s, found.gaps_s) == (None, None, None)
    assert found.goodput is None


def test_endpoint_without_capabilities_is_unverified() -> None:
    found = result_of(unverified(LONG))
    assert found.status is Status.UNVERIFIED
    assert found.reasons == [
        "the endpoint has no /v1/capabilities: how its engine batched is unknown"
    ]
    assert found.engine.engine is None


def test_trial_at_a_rate_too_low_to_batch_is_not_invalid() -> None:
    after = snapshot(requests_total=110, steps_by_batch=NEVER_BATCHED)
    assert result(TEN, after=after).status is Status.INVALID
    found = result(TEN, after=after, trial=True)
    assert found.status is Status.PRELIMINARY
    assert found.batches is not None
    assert found.batches.largest == 1
    others = snapshot(requests_total=111, steps_by_batch=NEVER_BATCHED)
    found = result(TEN, after=others, trial=True)
    assert found.status is Status.INVALID
    assert ["the engine served other clients" in reason for reason in found.reasons] == [True]


def test_result_reads_back_as_it_was_written() -> None:
    slo = replace(ONLINE, slo_ms={"ttft": 200.0})
    for found in (
        result([*TEN, refused(0.0), Call(due_s=1.0, fate=Fate.CUT)], slo),
        result_of(unverified(TEN)),
        result([refused(0.0)]),
    ):
        text = json.dumps(found.model_dump(mode="json"), allow_nan=False)
        assert Result.model_validate_json(text) == found
        assert json.loads(text)["schema_version"] == "orch.bench/2"


def test_result_of_another_version_or_with_more_in_it_is_not_read() -> None:
    document = result(TEN).model_dump(mode="json")
    for wrong in ({"schema_version": "orch.bench/3"}, {"more": 1}, {"status": "fine"}):
        with pytest.raises(ValidationError):
            Result.model_validate(document | wrong)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_number_of_a_result_is_infinite(value: float) -> None:
    document = result(TEN).model_dump(mode="json")
    document["figures"]["times_s"]["latency"]["p99"] = value
    with pytest.raises(ValidationError):
        Result.model_validate(document)


def test_every_call_has_its_row() -> None:
    found = result([answered(1.0, sent_s=1.01, queue_ms=2.5), refused(2.0)])
    columns = dict(
        zip(CALL_COLUMNS, zip(*(call.columns for call in found.calls), strict=True), strict=True)
    )
    assert columns == {
        "due_s": (1.0, 2.0),
        "sent_s": (1.01, 2.0),
        "first_s": (1.1, None),
        "ended_s": (1.2, 2.0),
        "status": (200, 429),
        "fate": ("answered", "refused"),
        "why": ("", "queue_full"),
        "input_tokens": (32, None),
        "output_tokens": (11, None),
        "queue_ms": (2.5, None),
        "class": (None, None),
    }

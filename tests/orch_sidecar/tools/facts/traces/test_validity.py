"""A label is earned by what the engine's steps say, or there is no fact."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orch_sidecar.tools.facts.traces.requests import build_traffic
from orch_sidecar.tools.facts.traces.span import Link, Value
from tests.orch_sidecar.tools.facts.earned import ALONE, LABELS, RUN, against, against_of, earned
from tests.orch_sidecar.tools.facts.spans import one, real, without


@pytest.mark.parametrize(
    ("name", "scenario"), [("home", "home-1"), ("cloud", "cloud-1"), ("offline", "offline-1")]
)
def test_nothing_speaks_against_a_real_run(name: str, scenario: str) -> None:
    traffic = build_traffic([span for each in ("home", "cloud", "offline") for span in real(each)])
    assert against_of(traffic, scenario) == {}


def test_real_requests_that_shared_a_decode_are_not_counted() -> None:
    says = against_of(build_traffic(real("mixed")), "shared-1")
    assert says["coalesced"].startswith("3 requests: a generation was shared")


def test_real_requests_that_never_met_in_a_step_are_not_batched() -> None:
    says = against_of(build_traffic(real("mixed")), "bulk-1")
    assert says == {"never_batched": "no step had more than one sequence (of 2)"}


def test_without_ids_a_real_warmup_is_part_of_the_run_and_other_runs_are_not() -> None:
    traffic = build_traffic(without(real("home"), "orch.scenario"))
    assert against_of(traffic, None) == {}


@pytest.mark.parametrize("label", LABELS)
def test_nothing_speaks_against_a_run_as_its_label_says(label: str) -> None:
    assert against(earned(label, 1, 0, 1), earned(label, 2, 1, 2), scenario="run-1") == {}


@pytest.mark.parametrize("label", ["to_be_confirmed", "aggregate", "none"])
def test_what_is_no_label_of_a_measurement_says_so(label: str) -> None:
    assert against(one(1, 0, 1, label=label)) == {
        "unknown_label": f"measurement_type is '{label}', which is not the label of a measurement"
    }


def test_a_run_without_an_answer_has_no_figure() -> None:
    assert against(one(1, 0, 1, outcome="slo_miss")) == {
        "nothing_served": "no request was answered"
    }


def test_single_stream_with_another_sequence_in_a_step_is_none() -> None:
    says = against(
        earned("single_stream", 1, 0, 1),
        earned("single_stream", 2, 1, 2, batch=(4, 3, 1.5)),
        scenario="run-1",
    )
    assert says["batch_above_one"] == "1 of 2 sequences shared a step, up to 3 in one"


def test_single_stream_with_two_in_the_engine_at_once_is_none() -> None:
    says = against(
        earned("single_stream", 1, 0, 1.5), earned("single_stream", 2, 1, 2), scenario="run-1"
    )
    assert says == {"overlap": "1 of 2 sequences arrived while another was in the engine"}


@pytest.mark.parametrize("label", ["batched_online", "offline"])
def test_batched_without_a_step_of_two_is_none(label: str) -> None:
    says = against(earned(label, 1, 0, 1, batch=ALONE), scenario="run-1")
    assert list(says) == ["never_batched"]


def test_steps_that_nobody_counted_earn_nothing() -> None:
    for batch in (None, (0, 0, 0.0)):
        request = earned("single_stream", 1, 0, 1, batch=batch)
        unknown = without(request, "orch.batch_size.max", "orch.batch_size.mean")
        assert list(against(unknown, scenario="run-1")) == ["no_steps"]


@pytest.mark.parametrize("label", LABELS)
def test_an_engine_that_was_not_traced_earns_nothing(label: str) -> None:
    says = against(earned(label, 1, 0, 1), earned(label, 2, 1, 2, decoded=0), scenario="run-1")
    assert says["engine_not_traced"].startswith("1 of 2 requests: no span of the engine")
    says = against(earned(label, 1, 0, 1, decoded=0), scenario="run-1")
    assert list(says) == ["engine_not_traced"]


def test_fewer_sequences_than_were_asked_for_are_not_all() -> None:
    says = against(earned("batched_online", 1, 0, 1, sequences=3, decoded=2), scenario="run-1")
    assert says == {"engine_not_traced": "1 request: fewer spans of the engine than sequences"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"decode": {"measurement_type": "offline"}},
            "1 request: the sidecar reports batched_online, the engine offline",
        ),
        (
            {"server": {**RUN, "gen_ai.usage.input_tokens": 11}},
            "1 request: sidecar and engine report different input tokens",
        ),
        (
            {"server": {**RUN, "gen_ai.usage.output_tokens": 4}},
            "1 request: sidecar and engine report different output tokens",
        ),
    ],
)
def test_spans_that_contradict_each_other_make_no_fact(more: dict[str, object], said: str) -> None:
    assert against(earned("batched_online", 1, 0, 1, **more), scenario="run-1") == {
        "contradiction": said
    }


def test_a_clock_that_was_set_back_makes_no_fact() -> None:
    [server, *rest] = earned("batched_online", 1, 5, 6)
    says = against([replace(server, end_ns=server.start_ns - 1), *rest], scenario="run-1")
    assert "the end is before the start" in says["contradiction"]


def test_interactive_requests_are_no_offline_traffic() -> None:
    online: dict[str, Value] = {**RUN, "orch.class": "interactive"}
    says = against(
        earned("offline", 1, 0, 1), earned("offline", 2, 1, 2, server=online), scenario="run-1"
    )
    assert says == {"online_traffic": "1 request of class interactive"}


def test_a_follower_of_another_run_makes_this_one_shared() -> None:
    leader = earned("batched_online", 1, 0, 10)
    link = Link(leader[0].trace_id, leader[0].span_id)
    follower = one(2, 1, 10, decoded=0, server={"orch.coalesced": True}, links=(link,))[:1]
    says = against(leader, follower, scenario="run-1")
    assert list(says) == ["coalesced"]
    assert list(against(leader, follower)) == ["coalesced"]


def test_an_engine_that_was_replaced_spoils_a_run() -> None:
    says = against(
        earned("batched_online", 1, 0, 1),
        earned("batched_online", 2, 1, 2, decode={"orch.epoch": "e2"}),
        scenario="run-1",
    )
    assert list(says) == ["engine_changed"]


def test_requests_that_have_not_ended_spoil_the_run_that_went_on_then() -> None:
    run = earned("batched_online", 1, 10, 20)
    _, wait, engine, _ = one(2, 15, 30, sequences=1)
    assert list(against(run, [wait], scenario="run-1")) == ["not_ended"]
    assert list(against(run, [wait, engine], scenario="run-1")) == ["not_ended"]
    _, wait, engine, _ = one(2, 1, 5, sequences=1)
    assert against(run, [wait, engine], scenario="run-1") == {}  # it was over before
    unassigned = replace(wait, attributes={**wait.attributes, "orch.pool": "another"})
    assert against(run, [unassigned], scenario="run-1") == {}
    _, later, *_ = one(2, 25, 30)
    assert against(run, [later], scenario="run-1") == {}


def test_requests_that_ended_in_another_way_spoil_nothing() -> None:
    run = [
        earned("batched_online", 1, 0, 10),
        earned("batched_online", 2, 1, 2, outcome="cancelled"),
        earned("batched_online", 3, 1, 2, outcome="engine_failed"),
        earned("batched_online", 4, 1, 2, outcome="queue_full"),
    ]
    assert against(*run, scenario="run-1") == {}

"""The engine's state, its document, and the subscribers that are woken by its changes.

The engine's speed in its state: step times, prefill, and stalls.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.vllm_plugin.examples import FACTS, LEASE, THEM, US, lease_of, report, subscribed
from vllm_plugin.contracts.lease_protocol import Claim, ClaimCall
from vllm_plugin.contracts.slot_claims import Subscriber
from vllm_plugin.state.engine_speed import NO_LORA, LoraUse, SchedulerReport, lora_use_of
from vllm_plugin.state.engine_state import EngineState
from vllm_plugin.state.readiness import NotReady


def test_document_contains_the_facts_and_the_counts() -> None:
    engine_state = EngineState(FACTS)
    engine_state.record(report(3, 1, batch=3, usage=0.25))
    state = engine_state.document(None)
    assert state["engine"] == "vllm"
    assert state["engine_version"] == "0.32.0"
    assert state["models"] == ["tiny", "alias"]
    assert state["measurement_type"] == "batched_online"
    assert state["epoch"] == "e1"
    assert state["state"] == "ready"
    assert (state["running"], state["waiting"], state["slots_free"]) == (3, 1, 4)
    assert state["kv_cache_usage"] == 0.25
    assert state["steps_by_batch"] == {"3": [1, 0.01]}


def test_peak_includes_sequences_that_ended_in_the_step() -> None:
    """Counts are taken after a step: sequences that ended in it are in its batch only."""
    engine_state = EngineState(FACTS)
    engine_state.record(report(0, 2, batch=6))
    assert engine_state.change_fields(None)["peak"] == 8
    engine_state.record(report(7, 2, batch=6))
    assert engine_state.change_fields(None)["peak"] == 9


def test_prefilling_counts_prompts_that_wait_or_are_computed() -> None:
    engine_state = EngineState(FACTS)
    engine_state.record(SchedulerReport(0.0, 5, 2, 0.1, 0, 5, False, 0.01, 900, decoding=3))
    assert engine_state.change_fields(None)["prefilling"] == 4
    _, woken = subscribed(engine_state)
    engine_state.record(SchedulerReport(0.0, 5, 2, 0.1, 0, 5, False, 0.01, 300, decoding=4))
    assert engine_state.change_fields(None)["prefilling"] == 3
    assert len(woken) == 1
    engine_state.record(report(5, batch=5))
    assert engine_state.change_fields(None)["prefilling"] == 0


def test_subscribers_are_woken_by_changes_only() -> None:
    engine_state = EngineState(FACTS)
    engine_state.enter(LEASE)
    _, woken = subscribed(engine_state)
    engine_state.record(report(1, batch=1, usage=0.1001))
    assert len(woken) == 1
    for _ in range(100):
        engine_state.record(report(1, batch=1, usage=0.1002))
    assert len(woken) == 1, "steady decoding costs no wake-ups"
    assert engine_state.speed.steps.count == 101
    engine_state.record(report(1, batch=1, usage=0.102))
    assert len(woken) == 2
    engine_state.record(report(0, usage=0.102))
    assert len(woken) == 3
    engine_state.record(report(0, usage=0.102, preempted=1))
    assert len(woken) == 4


def test_subscriber_that_has_yet_to_look_is_not_woken_again_by_changes() -> None:
    engine_state, woken = EngineState(FACTS), list[None]()
    subscriber = Subscriber(US, lambda: woken.append(None))
    engine_state.subscribe(subscriber)
    for running in range(1, 6):
        engine_state.record(report(running))
    assert (len(woken), subscriber.changed) == (1, True)
    assert engine_state.look(subscriber)["running"] == 5
    assert not subscriber.changed
    engine_state.record(report(7))
    assert len(woken) == 2


def test_what_is_sent_at_once_wakes_also_those_that_have_yet_to_look() -> None:
    """Ends, offers and readiness do not wait for the turn of a change."""
    engine_state, woken = EngineState(FACTS), list[None]()
    key = engine_state.enter(LEASE)
    assert isinstance(key, int)
    subscriber = Subscriber(US, lambda: woken.append(None))
    engine_state.subscribe(subscriber)
    engine_state.record(report(3))
    engine_state.leave(key)
    assert (len(woken), subscriber.ended) == (2, [LEASE])
    assert engine_state.claim(US, ClaimCall(Claim(1, urgent=True)))
    assert (len(woken), [offer.slots for offer in subscriber.offers]) == (3, [1])
    engine_state.readiness.call_began(NotReady("paused", "by a test"))
    engine_state.readiness_changed(100.0)
    assert len(woken) == 4


def test_end_of_a_request_without_a_lease_is_reported_to_no_instance() -> None:
    engine_state = EngineState(FACTS)
    subscriber, _ = subscribed(engine_state, None)
    key = engine_state.enter("nonsense")
    assert isinstance(key, int)
    engine_state.leave(key)
    assert subscriber.ended == []


def test_new_stream_of_a_sidecar_replaces_the_one_before() -> None:
    """That one's connection may be lost without its end: nothing is collected for it."""
    engine_state = EngineState(FACTS)
    former, _ = subscribed(engine_state)
    other, _ = subscribed(engine_state, THEM)
    readers = [subscribed(engine_state, None)[0] for _ in range(2)]
    engine_state.claim(US, ClaimCall(None, number=1))
    current, _ = subscribed(engine_state)
    assert [each.replaced for each in (former, other, *readers, current)] == [True] + [False] * 4
    for number in range(3):
        entered = engine_state.enter(lease_of(US, number))
        assert isinstance(entered, int)
        engine_state.leave(entered)
    assert (len(former.ended), len(current.ended)) == (0, 3)
    assert (engine_state.claims.sidecars, engine_state.claims.number_of(US)) == (2, 1)
    engine_state.unsubscribe(former)
    assert engine_state.claims.sidecars == 2
    engine_state.unsubscribe(current)
    assert engine_state.claims.sidecars == 1


def test_unsubscribed_reader_is_not_woken() -> None:
    engine_state = EngineState(FACTS)
    subscriber, woken = subscribed(engine_state)
    engine_state.unsubscribe(subscriber)
    engine_state.unsubscribe(subscriber)
    engine_state.record(report(3))
    assert woken == []


def decode(
    engine_state: EngineState, at_s: float, batch: int, elapsed_s: float, **more: Any
) -> None:
    """Records a step that only decoded."""
    engine_state.record(
        SchedulerReport(at_s, batch, 0, 0.0, 0, batch, True, elapsed_s, decoding=batch, **more)
    )


def prefill(
    engine_state: EngineState, at_s: float, tokens: int, decoding: int, elapsed_s: float
) -> None:
    """Records a step that computed a prompt and decoded `decoding` sequences."""
    batch = decoding + 1
    engine_state.record(
        SchedulerReport(at_s, batch, 0, 0.0, 0, batch, False, elapsed_s, tokens, decoding)
    )


def warmed_up() -> EngineState:
    """Returns a state with fitted steps of 10 ms plus 1 ms per sequence."""
    engine_state = EngineState(FACTS)
    for index in range(200):
        batch = 1 + index % 8
        decode(engine_state, 100.0 + index * 0.02, batch, 0.010 + 0.001 * batch)
    return engine_state


def test_before_any_step_the_speed_is_unknown() -> None:
    heartbeat_fields = EngineState(FACTS).heartbeat_fields(100.0)
    assert heartbeat_fields == {
        "state": "ready",
        "message": None,
        "requests_total": 0,
        "no_slot_total": 0,
        "steps_by_batch": {},
        "last_batches": [],
        "steps_total": 0,
        "busy_seconds_total": 0.0,
        "batch_seen": 0,
        "step_time": None,
        "generated_tokens_total": 0,
        "prefill": {"tokens": 0, "seconds": 0.0},
        "prefill_tokens_per_s": None,
        "prefix_cache": {"queries_total": 0, "hits_total": 0},
    }


def test_state_contains_the_fitted_step_time() -> None:
    state = warmed_up().document(None, 110.0)
    assert state["step_time"] == {
        "t0_ms": pytest.approx(10.0, rel=0.01),
        "c_ms": pytest.approx(1.0, rel=0.01),
        "alpha": pytest.approx(1.0, rel=0.01),
        "samples": 200,
        "batches": 8,
        "largest": 8,
        "tokens": 1.0,
        "error": pytest.approx(0.0, abs=1e-3),
        "quality": "good",
        "traffic": pytest.approx(1.0, rel=0.01),
        "prompt_share": 0.0,
    }
    assert state["steps_total"] == 200
    assert state["busy_seconds_total"] == pytest.approx(200 * 0.0145)


def test_fit_is_computed_at_most_once_a_second_and_only_for_new_steps() -> None:
    engine_state = EngineState(FACTS)
    for index in range(4):
        decode(engine_state, 100.0 + index * 0.01, 1, 0.01)
    first = engine_state.speed.step_time
    assert first is None, "one step is too few"
    assert engine_state.heartbeat_fields(100.9)["step_time"] is None
    decode(engine_state, 100.95, 1, 0.01)
    step_time = engine_state.heartbeat_fields(101.1)["step_time"]
    assert step_time["samples"] == 5
    made = engine_state.speed.step_time
    engine_state.heartbeat_fields(200.0)
    assert engine_state.speed.step_time is made, "no new step"
    decode(engine_state, 201.1, 1, 0.01)
    assert engine_state.speed.step_time is not made


def test_fit_follows_within_a_tenth_of_a_second_while_the_batch_grows() -> None:
    """From 8 sequences to 64, each batch five steps: the reader is woken each time."""
    engine_state = EngineState(FACTS)
    woken: list[int] = []
    engine_state.subscribe(Subscriber(US, lambda: woken.append(engine_state.speed.batch_seen)))
    at_s = 100.0
    for batch in (8, 16, 32, 64):
        while engine_state.speed.batch_seen < batch:
            at_s += 0.03
            decode(engine_state, at_s, batch, 0.03)
    assert at_s <= 101.0
    assert list(dict.fromkeys(woken)) == [0, 8, 16, 32, 64]
    assert engine_state.speed.step_time is not None
    assert engine_state.speed.step_time.largest == 64


def test_clock_that_was_set_back_does_not_stop_the_fits() -> None:
    engine_state = warmed_up()
    made = engine_state.speed.step_time
    decode(engine_state, 50.0, 1, 0.01)
    assert engine_state.speed.step_time is not made


def test_prefill_and_recomputation_are_kept_out_of_the_fit() -> None:
    engine_state = warmed_up()
    for index in range(100):
        prefill(engine_state, 200.0 + index, 512, 3, 5.0)
        decode(engine_state, 200.5 + index, 3, 5.0, recomputing=True)
    assert engine_state.heartbeat_fields(1000.0)["step_time"]["samples"] == 200


def test_without_a_good_fit_the_whole_step_counts_as_prefill() -> None:
    engine_state = EngineState(FACTS)
    prefill(engine_state, 100.0, 256, 4, 0.114)
    for index in range(20):
        decode(engine_state, 101.0 + index, 4, 0.014)
    assert engine_state.heartbeat_fields(130.0)["step_time"]["quality"] == "poor"
    prefill(engine_state, 131.0, 256, 4, 0.114)
    assert engine_state.heartbeat_fields(132.0)["prefill"]["seconds"] == pytest.approx(0.228)


def test_without_a_time_no_stall_is_reported() -> None:
    assert warmed_up().document(None)["state"] == "ready"


WITH_LORA = replace(FACTS, features={"max_loras": 2})


def test_adapters_are_named_by_what_their_requests_do() -> None:
    """vLLM counts both for each adapter, of which one is often 0."""
    stats = SimpleNamespace(
        running_lora_adapters={"sql": 2, "chat": 0, "art": 1},
        waiting_lora_adapters={"sql": 0, "chat": 3, "art": 1},
    )
    assert lora_use_of(stats) == LoraUse(("art", "sql"), ("art", "chat"))
    none = SimpleNamespace(running_lora_adapters={}, waiting_lora_adapters={})
    assert lora_use_of(none) is NO_LORA


def test_state_has_the_adapters_and_changes_with_them() -> None:
    engine_state = EngineState(WITH_LORA)
    _, woken = subscribed(engine_state)
    engine_state.set_models(("tiny",), ("sql", "chat"))
    assert engine_state.models == ("tiny", "sql", "chat")
    changes = len(woken)
    use = LoraUse(("sql",), ("chat",))
    engine_state.record(replace(report(), lora=use))
    assert len(woken) == changes + 1
    lora = engine_state.change_fields(None)["lora"]
    assert lora["adapters"] == ["sql", "chat"]
    assert (lora["running"], lora["waiting"]) == (("sql",), ("chat",))
    engine_state.record(replace(report(), lora=use))
    assert len(woken) == changes + 1, "nothing has changed"
    engine_state.record(report())
    assert engine_state.change_fields(None)["lora"]["running"] == ()


def test_engine_without_lora_reports_none() -> None:
    assert "lora" not in EngineState(FACTS).change_fields(None)

"""The engine's speed in its state: step times, prefill, and stalls."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vllm_plugin.examples import FACTS, US
from vllm_plugin.contracts.claiming_sidecar import Subscriber
from vllm_plugin.speed.engine_speed import SchedulerReport
from vllm_plugin.state.engine_state import EngineState


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

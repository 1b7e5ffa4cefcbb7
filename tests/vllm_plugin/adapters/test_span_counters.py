"""The engine's counters on spans: what does not add up over a window was not its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vllm_plugin.adapters.test_spans import NOW_S, VLLM_ATTRIBUTES, Tracer, state_with_steps
from tests.vllm_plugin.examples import FACTS
from vllm_plugin.state.engine_speed import SchedulerReport
from vllm_plugin.state.engine_state import EngineState

TRACED = f"00-{0xA:032x}-{0xB:016x}-01"
OTHER = f"00-{0xA:032x}-{0xC:016x}-01"


def number(tracer: Tracer, traceparent: str | None) -> int | None:
    found = tracer.span("llm_request", VLLM_ATTRIBUTES, traceparent).get("orch.request_number")
    assert found is None or isinstance(found, int)
    return found


def step(engine_state: EngineState, at_s: float, batch: int, **more: Any) -> None:
    report = SchedulerReport(at_s, batch, 0, 0.0, 0, batch, True, 0.01, decoding=batch, **more)
    engine_state.record(report)


def test_sequences_of_a_request_share_its_number_and_untraced_requests_leave_a_gap() -> None:
    engine_state = EngineState(FACTS)
    tracer = Tracer(engine_state)
    engine_state.enter(None, TRACED)
    engine_state.enter(None)  # straight to the engine
    engine_state.enter(None, f"{OTHER[:-2]}00")  # not sampled: makes no span
    engine_state.enter(None, OTHER.replace("000c-", "000d-"))
    assert [number(tracer, TRACED) for _ in range(3)] == [1, 1, 1]
    assert number(tracer, OTHER.replace("000c-", "000d-")) == 4
    labels = tracer.span("llm_request", VLLM_ATTRIBUTES, TRACED)
    assert labels["orch.requests_total"] == 4


def test_request_without_a_known_parent_has_no_number() -> None:
    engine_state = EngineState(FACTS)
    tracer = Tracer(engine_state)
    engine_state.enter(None, TRACED)
    assert number(tracer, None) is None
    assert number(tracer, OTHER) is None


def test_span_that_ends_after_its_request_has_left_still_has_the_number() -> None:
    engine_state = EngineState(FACTS)
    tracer = Tracer(engine_state)
    key = engine_state.enter(None, TRACED)
    assert isinstance(key, int)
    engine_state.leave(key)
    assert number(tracer, TRACED) == 1


def test_requests_that_share_a_parent_at_once_have_no_number() -> None:
    engine_state = EngineState(FACTS)
    tracer = Tracer(engine_state)
    for _ in range(2):
        engine_state.enter(None, TRACED)
    assert number(tracer, TRACED) is None


def test_decode_counters_account_for_every_sequence_of_a_window() -> None:
    """Two sequences of 10 steps, and of 4 in their midst; both end in the same step, and two
    others of whom there is no span are in three of the steps."""
    engine_state = EngineState(FACTS)
    tracer = Tracer(engine_state)
    step(engine_state, NOW_S - 0.30, 5)  # before the window
    batches = [1] * 6 + [2] + [4] * 3
    for index, batch in enumerate(batches):
        step(engine_state, NOW_S - 0.01 * (len(batches) - 1 - index), batch)
    spans = [
        tracer.span("llm_request", {"gen_ai.latency.time_to_first_token": 1.25 - seconds})
        for seconds in (0.095, 0.035)
    ]
    assert [labels["orch.steps"] for labels in spans] == [10, 4]
    ends = [labels["orch.decode_sequences_total"] for labels in spans]
    begins = [
        labels["orch.decode_sequences_total"]
        - round(labels["orch.steps"] * labels["orch.batch_size.mean"])
        for labels in spans
    ]
    assert max(ends) - min(begins) == sum(batches)
    assert sum(batches) - sum(labels["orch.steps"] for labels in spans) == 3 * 2
    first = spans[0]
    assert first["orch.decode_steps_total"] - first["orch.steps"] == 1


def test_steps_that_computed_prompts_are_engine_steps_only() -> None:
    engine_state = state_with_steps(2, 2)
    engine_state.speed.steps.record(NOW_S, 0.01, 3, decode_only=False)
    labels = Tracer(engine_state).span("llm_request", VLLM_ATTRIBUTES)
    assert (labels["orch.steps"], labels["orch.engine_steps"]) == (2, 3)
    assert (labels["orch.decode_steps_total"], labels["orch.decode_sequences_total"]) == (2, 4)


def test_prefix_cache_is_counted_before_and_after_the_request() -> None:
    engine_state = EngineState(FACTS)
    tracer = Tracer(engine_state)
    step(engine_state, NOW_S - 5.0, 1, prefix_queries=100, prefix_hits=0)
    step(engine_state, NOW_S - 1.0, 1, prefix_queries=100, prefix_hits=96)
    labels = tracer.span("llm_request", VLLM_ATTRIBUTES, start_s=NOW_S - 2.0)
    assert {k: v for k, v in labels.items() if k.startswith("orch.prefix_cache.")} == {
        "orch.prefix_cache.queries_before": 100,
        "orch.prefix_cache.hits_before": 0,
        "orch.prefix_cache.queries_total": 200,
        "orch.prefix_cache.hits_total": 96,
    }


@pytest.mark.parametrize("kept", [True, False])
def test_count_of_too_long_ago_is_missing_rather_than_wrong(kept: bool) -> None:
    engine_state = EngineState(FACTS)
    if not kept:
        engine_state.prefix_cache = type(engine_state.prefix_cache)(capacity=1)
    for index in range(3):
        step(engine_state, NOW_S - 5.0 + index, 1, prefix_queries=10, prefix_hits=1)
    labels = Tracer(engine_state).span("llm_request", VLLM_ATTRIBUTES, start_s=NOW_S - 60.0)
    assert ("orch.prefix_cache.queries_before" in labels) is kept
    assert labels["orch.prefix_cache.queries_total"] == 30

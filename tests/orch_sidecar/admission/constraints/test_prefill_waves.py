"""Waves of long bulk prompts yield to interactive requests once their queue uses up the SLO."""

from __future__ import annotations

from orch_sidecar.admission.types import EngineReport, StepTime
from tests.orch_sidecar.admission.bench import Bench
from tests.orch_sidecar.admission.examples import bulk, class_rules, interactive, reason, rules

STEP = StepTime(10.0, 0.0, 1.0, 16)  # 100 tokens: a second


def with_queue(queued: int, *, slots: int = 2) -> Bench:
    """An SLO of 1.2 s, and interactive requests of a second each, of which `slots` run at once."""
    bench = Bench(8, rules(class_rules(ttft_p95_ms=1200.0)))
    bench.constraints.reported(EngineReport("e", 8, prefill_tokens_per_s=1000.0), 0.0)
    bench.limit(interactive=slots, bulk=8, mixed=8)
    bench.service_times.step_time = STEP
    bench.grant(interactive(slots))
    for number in range(queued):
        bench.wait(interactive(max_tokens=100), f"waiting {number}")
    return bench


def test_prompt_is_admitted_while_the_queue_leaves_time() -> None:
    bench = with_queue(2)
    assert bench.blocked_by(bulk(prompt_tokens=40)) is None
    bench.grant(bulk(prompt_tokens=40))
    assert bench.blocked_by(bulk(prompt_tokens=1)) is None
    assert reason(bench.blocked_by(bulk(prompt_tokens=40))) == "prefill", "a quarter of 200 ms"


def test_prompts_yield_beyond_the_measured_depth_and_until_it_is_reached_again() -> None:
    assert reason(with_queue(3).blocked_by(bulk(prompt_tokens=1))) == "prefill"
    assert with_queue(3, slots=4).blocked_by(bulk(prompt_tokens=1)) is None, "these are faster"
    fast = with_queue(3)
    fast.service_times.step_time = StepTime(1.0, 0.0, 1.0, 16)
    assert fast.blocked_by(bulk(prompt_tokens=1)) is None
    bench = with_queue(3)
    bench.wait(bulk(prompt_tokens=1), "bulk")
    at = bench.clears_at("prefill", 5.0)
    assert at is not None
    assert at > 5.0
    bench.queues.remove("waiting 0")
    assert bench.blocked_by(bulk(prompt_tokens=1)) is None

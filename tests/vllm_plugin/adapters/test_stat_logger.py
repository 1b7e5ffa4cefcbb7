"""Reports of steps made from vLLM's statistics. Only vLLM's empty base class is replaced, to avoid
its import; the engine tests run the real one."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.vllm_plugin.examples import FACTS
from vllm_plugin.adapters.vllm_config import StepTiming
from vllm_plugin.state.engine_speed import SchedulerReport
from vllm_plugin.state.engine_state import EngineState


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    loggers = ModuleType("vllm.v1.metrics.loggers")
    loggers.StatLoggerBase = object  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics.loggers", loggers)
    monkeypatch.delitem(sys.modules, "vllm_plugin.adapters.stat_logger", raising=False)
    import vllm_plugin.adapters.stat_logger as loaded

    yield loaded
    sys.modules.pop("vllm_plugin.adapters.stat_logger", None)


def cache_stats(lookups: tuple[int, int]) -> SimpleNamespace:
    """vLLM's statistics, with those of a preempted sequence."""
    return SimpleNamespace(
        queries=lookups[0], hits=lookups[1], preempted_queries=900, preempted_hits=800
    )


@dataclass
class Recorder:
    """A stat logger with a manual clock, and its reports."""

    module: Any
    timing: StepTiming = StepTiming.WHOLE
    tokens_per_sequence: int = 1
    now_s: float = 1000.0
    reports: list[SchedulerReport] = field(default_factory=list)
    engine_state: EngineState = field(default_factory=lambda: EngineState(FACTS))

    def __post_init__(self) -> None:
        self.module.time = SimpleNamespace(time=lambda: self.now_s)
        engine_state, record = self.engine_state, self.engine_state.record

        def keep(report: SchedulerReport) -> None:
            self.reports.append(report)
            record(report)

        engine_state.record = keep  # type: ignore[method-assign]
        self.logger = self.module.SchedulerStatLogger(
            engine_state, self.timing, self.tokens_per_sequence
        )

    def record(
        self,
        at_s: float,
        *,
        prompts: tuple[int, int] | None = None,
        decoding: tuple[int, int] | None = None,
        running: int = 0,
        elapsed_ms: float = 10.0,
        intervals: tuple[float, ...] = (),
        first_tokens: tuple[float, ...] = (),
        preempted: int = 0,
        generated: int = 0,
        lookups: tuple[int, int] = (0, 0),
        further: tuple[int, int] | None = None,
        sql: int = 0,
    ) -> SchedulerReport:
        """Records a step; `prompts` and `decoding` are (sequences, tokens); neither: no step ran.
        `intervals`: seconds since the last output of each sequence that decoded; `first_tokens`:
        from arrivals. `lookups`: tokens
        looked up in the prefix cache, and found; `further`: of a connector. `sql`: an adapter's."""
        self.now_s = at_s
        details = None
        if prompts is not None or decoding is not None:
            details = SimpleNamespace(
                num_ctx_requests=(prompts or (0, 0))[0],
                num_ctx_tokens=(prompts or (0, 0))[1],
                num_generation_requests=(decoding or (0, 0))[0],
                num_generation_tokens=(decoding or (0, 0))[1],
                elapsed_ms=elapsed_ms,
                is_dummy=False,
            )
        stats = SimpleNamespace(
            num_running_reqs=running,
            num_waiting_reqs=1,
            num_skipped_waiting_reqs=2,
            kv_cache_usage=0.5,
            iteration_details=details,
            prefix_cache_stats=cache_stats(lookups),
            connector_prefix_cache_stats=None if further is None else cache_stats(further),
            running_lora_adapters={"sql": sql},
            waiting_lora_adapters={},
        )
        if running == 0:
            stats.num_waiting_reqs = stats.num_skipped_waiting_reqs = 0
        iteration = SimpleNamespace(
            num_preempted_reqs=preempted,
            inter_token_latencies_iter=list(intervals),
            time_to_first_tokens_iter=list(first_tokens),
            num_generation_tokens=generated,
            finished_requests=[],
        )
        # vLLM has none of a step without output.
        self.logger.record(stats, iteration if intervals or first_tokens or generated else None)
        return self.reports[-1]


def test_step_is_reported_with_its_batch(module: Any) -> None:
    recorder = Recorder(module)
    found = recorder.record(
        1000.0,
        prompts=(2, 300),
        decoding=(3, 3),
        running=5,
        intervals=(0.5, 0.5, 0.5),
        preempted=4,
        generated=3,
    )
    assert found == SchedulerReport(1000.0, 5, 3, 0.5, 4, 5, False, 0.010, 300, 3, False, 3, 3)
    found = recorder.record(1001.0, decoding=(3, 3), running=3)
    assert (found.batch, found.decode_only, found.prompt_tokens) == (3, True, 0)
    found = recorder.record(1002.0)
    assert (found.batch, found.running, found.waiting) == (None, 0, 0)


def test_adapters_of_a_step_are_reported(module: Any) -> None:
    for step in (None, (1, 1)):
        found = Recorder(module).record(1.0, decoding=step, running=1, sql=1).lora
        assert (found.running, found.waiting) == (("sql",), ())


@pytest.mark.parametrize(
    ("lookups", "further", "found"),
    [
        ((0, 0), None, (0, 0)),
        ((300, 256), None, (300, 256)),
        ((300, 100), (200, 150), (300, 250)),  # the connector is asked for the rest
        ((300, 300), (0, 0), (300, 300)),
        ((0, 0), (300, 128), (300, 128)),  # the cache itself is off
    ],
)
def test_lookups_in_the_prefix_cache_are_reported(
    module: Any,
    lookups: tuple[int, int],
    further: tuple[int, int] | None,
    found: tuple[int, int],
) -> None:
    """With every report, also where no step ran; those of preempted sequences never."""
    recorder = Recorder(module)
    for prompts in ((1, 44), None):
        report = recorder.record(
            1000.0, prompts=prompts, running=1, lookups=lookups, further=further
        )
        assert (report.prefix_queries, report.prefix_hits) == found
    document = recorder.engine_state.heartbeat_fields()["prefix_cache"]
    assert document == {"queries_total": 2 * found[0], "hits_total": 2 * found[1]}


def test_recomputation_after_a_preemption_is_reported(module: Any) -> None:
    recorder = Recorder(module)
    found = recorder.record(1000.0, decoding=(3, 500), running=3)
    assert (found.decode_only, found.recomputing) == (True, True)
    drafting = Recorder(module, tokens_per_sequence=4)
    assert not drafting.record(1000.0, decoding=(3, 12), running=3).recomputing
    assert drafting.record(1000.0, decoding=(3, 13), running=3).recomputing


def test_asynchronous_steps_are_timed_by_the_engine_core(module: Any) -> None:
    """However late the report: the API server may be busy when it arrives."""
    recorder = Recorder(module, timing=StepTiming.WAIT)
    recorder.record(1000.0, decoding=(2, 2), running=2, intervals=(0.02, 0.02))
    found = recorder.record(1000.07, decoding=(2, 2), running=2, intervals=(0.02, 0.02))
    assert (found.elapsed_s, found.decode_only) == (0.02, True)
    found = recorder.record(1000.071, decoding=(2, 2), running=2, intervals=(0.02, 0.02))
    assert (found.elapsed_s, found.decode_only) == (0.02, True)
    mixed = recorder.record(
        1000.1, prompts=(1, 9), decoding=(1, 1), running=2, intervals=(0.05,), elapsed_ms=1.0
    )
    assert (mixed.elapsed_s, mixed.decode_only) == (0.05, False)


def test_preempted_sequence_does_not_distort_the_duration_of_a_step(module: Any) -> None:
    recorder = Recorder(module, timing=StepTiming.WAIT)
    found = recorder.record(1000.0, decoding=(2, 2), running=2, intervals=(0.9, 0.02), preempted=1)
    assert (found.elapsed_s, found.decode_only) == (0.02, True)
    alone = recorder.record(
        1000.1, decoding=(1, 40), running=1, intervals=(0.9,), preempted=1, elapsed_ms=30.0
    )
    assert (alone.elapsed_s, alone.decode_only) == (0.030, False)
    paused = recorder.record(1020.0, decoding=(1, 1), running=1, intervals=(19.0,), elapsed_ms=30.0)
    assert (paused.elapsed_s, paused.decode_only) == (0.030, False)


def test_steps_without_decode_are_timed_between_reports(module: Any) -> None:
    recorder = Recorder(module, timing=StepTiming.WAIT)
    found = recorder.record(1000.0, prompts=(1, 9), running=1, elapsed_ms=30.0)
    assert found.elapsed_s == 0.030, "at least the time for which the result was awaited"
    found = recorder.record(1000.05, prompts=(1, 9), running=1, elapsed_ms=1.0)
    assert found.elapsed_s == pytest.approx(0.05)
    found = recorder.record(1003.0, prompts=(1, 9), running=0, elapsed_ms=1.0)
    assert found.elapsed_s == 0.001, "its duration is unknown"
    found = recorder.record(1003.5, prompts=(1, 9), running=1, elapsed_ms=20.0)
    assert found.elapsed_s == 0.020, "the pause does not count"


def test_steps_of_a_model_in_the_same_process_are_not_timed_by_what_follows_it(module: Any) -> None:
    recorder = Recorder(module, timing=StepTiming.REST)
    begun = recorder.record(1000.0, prompts=(1, 256), running=1, elapsed_ms=1.0)
    assert begun.prompt_tokens == 0, "how long they took is unknown"
    read = recorder.record(1000.04, prompts=(1, 9), running=1, elapsed_ms=1.0, first_tokens=(0.1,))
    assert (read.elapsed_s, read.prompt_tokens) == (0.1, 265), "of both steps"
    decoded = recorder.record(1000.06, decoding=(1, 1), running=1, intervals=(0.02,))
    assert (decoded.elapsed_s, decoded.decode_only) == (0.02, True)
    further = recorder.record(1000.1, prompts=(1, 8), running=0, elapsed_ms=1.0)
    assert further.elapsed_s == pytest.approx(0.04)
    assert further.prompt_tokens == 8
    recorder.record(1002.0, prompts=(1, 256), running=1, elapsed_ms=1.0)
    recorder.record(1002.1, running=0)  # it is aborted
    short = recorder.record(
        1003.0, prompts=(2, 30), running=2, elapsed_ms=1.0, first_tokens=(0.05, 0.03)
    )
    assert (short.elapsed_s, short.prompt_tokens) == (0.05, 30)


def true_step_s(batch: int) -> float:
    return float(0.004 + 0.001 * batch**0.8)


def run_asynchronously(recorder: Recorder, steps: int, drafts: float = 0.0) -> float:
    """A busy engine with asynchronous scheduling, whose reports come late: each by up to a step
    or so, one in 50 by a fifth of a second. Returns the seconds from its begin to the last report.

    A prompt is read now and then, which takes 30 ms; the sequence decodes from the next step on.
    """
    rng = random.Random(7)
    ended_s = arrived_s = began_s = 1000.0
    decoding = 0
    for _ in range(steps):
        if decoding and rng.random() < 0.04 * decoding / 4:
            decoding -= 1
        reads = not decoding or (decoding < 8 and rng.random() < 0.05)
        step_s = true_step_s(decoding) * rng.uniform(0.97, 1.03) + (0.030 if reads else 0.0)
        ended_s += step_s
        late_s = rng.expovariate(1 / 0.004) + (0.2 if rng.random() < 0.02 else 0.0)
        arrived_s = max(arrived_s + 1e-4, ended_s + late_s)
        generated = sum(1 + (rng.random() < drafts) for _ in range(decoding))
        recorder.record(
            arrived_s,
            prompts=(1, 300) if reads else None,
            decoding=(decoding, decoding) if decoding or not reads else None,
            running=decoding + reads,
            elapsed_ms=max(0.0, step_s - 0.002) * 1000,
            intervals=(step_s,) * decoding,
            generated=generated,
        )
        decoding += reads
    return arrived_s - began_s


def test_fit_of_an_asynchronous_engine_is_true_however_late_reports_come(module: Any) -> None:
    recorder = Recorder(module, timing=StepTiming.WAIT)
    wall_s = run_asynchronously(recorder, 4000)
    fit = recorder.engine_state.heartbeat_fields(recorder.now_s + 5)["step_time"]
    assert fit["quality"] == "good"
    assert fit["tokens"] == 1.0
    for batch in range(1, 9):
        fitted_ms = fit["t0_ms"] + fit["c_ms"] * batch ** fit["alpha"]
        assert fitted_ms == pytest.approx(1000 * true_step_s(batch), rel=0.03)
    assert 0.95 * wall_s < recorder.engine_state.speed.steps.busy_s <= wall_s


def test_several_tokens_per_step_are_reported_with_the_step_time(module: Any) -> None:
    """Speculative decoding: the step time is no time per token."""
    recorder = Recorder(module, timing=StepTiming.WAIT, tokens_per_sequence=2)
    run_asynchronously(recorder, 2000, drafts=0.6)
    fit = recorder.engine_state.heartbeat_fields(recorder.now_s + 5)["step_time"]
    assert fit["tokens"] == pytest.approx(1.6, abs=0.03)
    generated = sum(report.generated for report in recorder.reports)
    assert (
        recorder.engine_state.heartbeat_fields()["generated_tokens_total"]
        == generated
        > recorder.engine_state.speed.steps.count
    )


def test_finished_requests_are_passed_on_with_the_time_of_their_step(module: Any) -> None:
    """Also those of a report without the scheduler's statistics."""
    passed: list[tuple[list[str], float]] = []
    logger = module.SchedulerStatLogger(
        EngineState(FACTS), finished=lambda requests, at_s: passed.append((requests, at_s))
    )
    for requests in (["a", "b"], []):
        iteration = SimpleNamespace(finished_requests=requests, iteration_timestamp=1000.5)
        logger.record(None, iteration)
    logger.record(None, None)
    assert passed == [(["a", "b"], 1000.5)]

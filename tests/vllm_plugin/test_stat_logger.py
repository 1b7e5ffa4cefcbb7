"""What of vLLM's statistics is reported of a step. Of vLLM, only the empty base class is missing
here: a stand-in spares its import; the engine tests run the real one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.vllm_plugin.test_board import FACTS
from vllm_plugin.board import Board, StepReport


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    loggers = ModuleType("vllm.v1.metrics.loggers")
    loggers.StatLoggerBase = object  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics.loggers", loggers)
    monkeypatch.delitem(sys.modules, "vllm_plugin.stat_logger", raising=False)
    import vllm_plugin.stat_logger as loaded

    yield loaded
    sys.modules.pop("vllm_plugin.stat_logger", None)


@dataclass
class Recorder:
    """A stat logger whose clock is set by hand, and what it reported."""

    module: Any
    asynchronous: bool = False
    tokens_per_sequence: int = 1
    now_s: float = 1000.0
    reports: list[StepReport] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.module.time = SimpleNamespace(time=lambda: self.now_s)
        board = Board(FACTS)
        board.stepped = self.reports.append  # type: ignore[assignment, method-assign]
        self.logger = self.module.BoardStatLogger(
            board, self.asynchronous, self.tokens_per_sequence
        )

    def record(
        self,
        at_s: float,
        *,
        prompts: tuple[int, int] | None = None,
        decoding: tuple[int, int] | None = None,
        running: int = 0,
        elapsed_ms: float = 10.0,
    ) -> StepReport:
        """A report; `prompts` and `decoding` are (sequences, tokens); neither: no step ran."""
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
        )
        if running == 0:
            stats.num_waiting_reqs = stats.num_skipped_waiting_reqs = 0
        self.logger.record(stats, SimpleNamespace(num_preempted_reqs=4))
        return self.reports[-1]


def test_step_is_reported_with_what_it_ran(module: Any) -> None:
    recorder = Recorder(module)
    found = recorder.record(1000.0, prompts=(2, 300), decoding=(3, 3), running=5)
    assert found == StepReport(1000.0, 5, 3, 0.5, 4, 5, False, 0.010, 300, 3, False)
    found = recorder.record(1001.0, decoding=(3, 3), running=3)
    assert (found.batch, found.decode_only, found.prompt_tokens) == (3, True, 0)
    found = recorder.record(1002.0)
    assert (found.batch, found.running, found.waiting) == (None, 0, 0)


def test_preempted_sequence_that_computes_its_tokens_again_is_told_apart(module: Any) -> None:
    recorder = Recorder(module)
    found = recorder.record(1000.0, decoding=(3, 500), running=3)
    assert (found.decode_only, found.recomputing) == (True, True)
    drafting = Recorder(module, tokens_per_sequence=4)
    assert not drafting.record(1000.0, decoding=(3, 12), running=3).recomputing
    assert drafting.record(1000.0, decoding=(3, 13), running=3).recomputing


def test_asynchronous_steps_last_from_report_to_report(module: Any) -> None:
    recorder = Recorder(module, asynchronous=True)
    found = recorder.record(1000.0, prompts=(1, 9), running=1, elapsed_ms=30.0)
    assert found.elapsed_s == 0.030, "at least what it was waited for"
    found = recorder.record(1000.05, decoding=(1, 1), running=1, elapsed_ms=1.0)
    assert found.elapsed_s == pytest.approx(0.05)
    assert found.decode_only
    found = recorder.record(1003.0, decoding=(1, 1), running=1, elapsed_ms=1.0)
    assert (found.elapsed_s, found.decode_only) == (0.001, False), "no telling how long it took"


def test_pause_is_not_the_time_of_the_prompt_that_ends_it(module: Any) -> None:
    recorder = Recorder(module, asynchronous=True)
    recorder.record(1000.0, decoding=(1, 1), running=0)
    found = recorder.record(1000.5, prompts=(1, 9), running=1, elapsed_ms=20.0)
    assert found.elapsed_s == 0.020
    found = recorder.record(1000.6, prompts=(1, 9), decoding=(1, 1), running=2, elapsed_ms=20.0)
    assert found.elapsed_s == pytest.approx(0.1)


def test_without_a_profile_nothing_is_reported(module: Any) -> None:
    module.BoardStatLogger(None, False).record(SimpleNamespace(), None)

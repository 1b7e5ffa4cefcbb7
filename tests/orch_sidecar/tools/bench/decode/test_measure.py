"""Timers: of the host by its clock, of a GPU by events on the GPU's own timeline."""

from __future__ import annotations

from time import perf_counter_ns

import pytest

from orch_sidecar.tools.bench.decode.measure import EventTimer, HostTimer, Stopwatch
from orch_sidecar.tools.bench.decode.result import TimedStep


def spin(ms: float) -> None:
    until = perf_counter_ns() + ms * 1e6
    while perf_counter_ns() < until:
        pass


def test_host_timer_separates_steps_from_gaps() -> None:
    timer = HostTimer()
    first_ms, no_gap = timer(lambda: spin(3))
    assert no_gap is None
    assert first_ms >= 3
    spin(1)
    second_ms, gap_ms = timer(lambda: spin(2))
    assert second_ms >= 2
    assert gap_ms is not None
    assert gap_ms >= 1


class Gpu:
    """Stands for torch.cuda: a queue whose work is done when an event is waited for."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.made = 0
        self.queue: list[float | ScriptedEvent] = []

    def Event(self, *, enable_timing: bool) -> ScriptedEvent:  # noqa: N802 (torch's name)
        assert enable_timing, "torch refuses to read an event that was made without"
        self.made += 1
        return ScriptedEvent(self)


class ScriptedEvent:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.at_ms: float | None = None

    def record(self) -> None:
        self.at_ms = None
        self._gpu.queue.append(self)

    def synchronize(self) -> None:
        for each in self._gpu.queue:
            if isinstance(each, ScriptedEvent):
                each.at_ms = self._gpu.now_ms
            else:
                self._gpu.now_ms += each
        self._gpu.queue.clear()
        assert self.at_ms is not None

    def elapsed_time(self, end: ScriptedEvent) -> float:
        assert self.at_ms is not None, "torch refuses to read what is not over"
        assert end.at_ms is not None, "torch refuses to read what is not over"
        return end.at_ms - self.at_ms


def test_event_timer_reads_steps_and_gaps_from_the_gpus_timeline() -> None:
    gpu = Gpu()
    timer = EventTimer(gpu)
    assert timer(lambda: gpu.queue.extend([1.5, 0.5])) == (2.0, None)
    work = iter([4.0, 3.0, 1.0])
    found = []
    for gap_ms in (0.25, 0.5, 0.0):
        gpu.now_ms += gap_ms  # the GPU has nothing to do until the host launches
        found.append(timer(lambda: gpu.queue.append(next(work))))
    assert found == [(4.0, 0.25), (3.0, 0.5), (1.0, 0.0)]
    assert gpu.made == 4


def test_stopwatch_runs_the_batch_and_keeps_what_each_step_took() -> None:
    ran: list[int] = []
    script = iter([(5.0, None), (6.0, 0.25)])

    def timer(launch: object) -> tuple[float, float | None]:
        assert callable(launch)
        launch()
        return next(script)

    stopwatch = Stopwatch(ran.append, timer)
    assert [stopwatch(4), stopwatch(2)] == [5.0, 6.0]
    assert ran == [4, 2]
    assert stopwatch.timed == [TimedStep(4, 5.0, None), TimedStep(2, 6.0, 0.25)]


def test_failed_step_is_not_recorded() -> None:
    def fail(batch: int) -> None:
        raise RuntimeError("out of memory")

    stopwatch = Stopwatch(fail, HostTimer())
    with pytest.raises(RuntimeError, match="out of memory"):
        stopwatch(1)
    assert stopwatch.timed == []

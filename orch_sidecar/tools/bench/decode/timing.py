"""Measures each step on the device, and the gap since the previous step.

On a GPU both are measured between events on the device's timeline, as in a profiler; on a CPU by
the host's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

from orch_sidecar.tools.bench.decode.figures import TimedStep


class Timer(Protocol):
    """Runs a step to its end; returns its milliseconds and those of the gap before it, or None."""

    def __call__(self, launch: Callable[[], None]) -> tuple[float, float | None]: ...


class HostTimer:
    """Times a step that runs within the call."""

    def __init__(self) -> None:
        self._ended_ns: int | None = None

    def __call__(self, launch: Callable[[], None]) -> tuple[float, float | None]:
        last, started = self._ended_ns, perf_counter_ns()
        launch()
        self._ended_ns = perf_counter_ns()
        gap_ms = None if last is None else (started - last) / 1e6
        return (self._ended_ns - started) / 1e6, gap_ms


class EventTimer:
    """Times a step that the call only launches. `cuda`: the module torch.cuda, of CUDA or HIP.

    Two pairs of events alternate, so that the previous end still exists when the gap is read, and
    none is created within a step. The host waits only for the end of a step.
    """

    def __init__(self, cuda: Any) -> None:
        self._pairs = [
            (cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(2)
        ]
        self._last: Any = None

    def __call__(self, launch: Callable[[], None]) -> tuple[float, float | None]:
        self._pairs.reverse()
        start, end = self._pairs[0]
        start.record()
        launch()
        end.record()
        end.synchronize()
        gap_ms = None if self._last is None else self._last.elapsed_time(start)
        self._last = end
        return start.elapsed_time(end), gap_ms


class Stopwatch:
    """Runs steps and records the time of each."""

    def __init__(self, step: Callable[[int], None], timer: Timer) -> None:
        self._step, self._timer = step, timer
        self.timed: list[TimedStep] = []

    def __call__(self, batch: int) -> float:
        """Runs one step of that many sequences and returns its milliseconds."""
        ms, gap_ms = self._timer(lambda: self._step(batch))
        self.timed.append(TimedStep(batch, ms, gap_ms))
        return ms

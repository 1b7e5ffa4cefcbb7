"""Measures each step on the device, and the gap since the step before.

On a GPU both are on the device's own timeline, between events, as a profiler shows them; on a
CPU they are by the clock of the host.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

from orch_sidecar.tools.bench.decode.figures import TimedStep


class Timer(Protocol):
    """Runs what it is given to its end; (milliseconds of it, of the gap before or None)."""

    def __call__(self, launch: Callable[[], None]) -> tuple[float, float | None]: ...


class HostTimer:
    """For what runs within the call."""

    def __init__(self) -> None:
        self._ended_ns: int | None = None

    def __call__(self, launch: Callable[[], None]) -> tuple[float, float | None]:
        last, started = self._ended_ns, perf_counter_ns()
        launch()
        self._ended_ns = perf_counter_ns()
        gap_ms = None if last is None else (started - last) / 1e6
        return (self._ended_ns - started) / 1e6, gap_ms


class EventTimer:
    """For what the call only launches. `cuda`: the module torch.cuda, of CUDA or of HIP.

    Two pairs of events take turns, so that the end of the step before is still there when this
    one's gap is read; none is made within a step. Its end is the one point where the host waits.
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
    """Runs steps by their batch, and keeps what each took."""

    def __init__(self, step: Callable[[int], None], timer: Timer) -> None:
        self._step, self._timer = step, timer
        self.timed: list[TimedStep] = []

    def __call__(self, batch: int) -> float:
        """Milliseconds of one step of so many sequences."""
        ms, gap_ms = self._timer(lambda: self._step(batch))
        self.timed.append(TimedStep(batch, ms, gap_ms))
        return ms

"""A real engine whose steps take as long as on a GPU, several times slower.

What a virtual machine computes in a second differs by a quarter from one half minute to the next,
and by that the first tokens of a loaded engine differ by a factor. So the worker waits, after the
model has computed a step, until the step has taken what it takes by the curve of `virtual.H200`
times a factor. Scheduler, KV cache, server and tokens are vLLM's own. Steps that the machine is too
slow for are counted.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.cpu_worker import CPUWorker

from tests.benchmarks.idle.virtual import H200

FACTOR: Final = "BENCH_PACED_FACTOR"
FILE: Final = "BENCH_PACED_FILE"
ARGUMENTS: Final = ("--worker-cls", f"{__name__}.PacedWorker")


@dataclass(frozen=True, slots=True)
class Pace:
    """Where the worker learns the factor of the curve, and writes how many steps it has run, and
    how many of them took longer than by the curve."""

    factor: float
    file: Path

    def __post_init__(self) -> None:
        self.file.touch()

    @property
    def environ(self) -> dict[str, str]:
        """What the engine's process needs, whose arguments are ARGUMENTS."""
        root = str(Path(__file__).parents[3])
        return {FACTOR: str(self.factor), FILE: str(self.file), "PYTHONPATH": root}

    def counts(self) -> tuple[int, int]:
        steps, late = map(int, self.file.read_text().split() or (0, 0))
        return steps, late


class PacedWorker(CPUWorker):  # type: ignore[misc]
    """The worker of an engine for CPUs, each step of which takes a GPU's time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._factor = float(os.environ[FACTOR])
        self._file = os.open(os.environ[FILE], os.O_WRONLY)
        self._steps = self._late = 0

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        began_s = time.monotonic()
        output = super().execute_model(scheduler_output)
        scheduled = scheduler_output.num_scheduled_tokens.values()
        decoding = sum(tokens == 1 for tokens in scheduled)
        prompt_s = (sum(scheduled) - decoding) / H200.prefill_tokens_per_s
        if scheduled:
            takes_s = self._factor * (H200.step_ms(decoding) / 1000 + prompt_s)
            left_s = began_s + takes_s - time.monotonic()
            self._count(is_late=left_s < 0)
            time.sleep(max(0.0, left_s))
        return output

    def _count(self, *, is_late: bool) -> None:
        self._steps += 1
        self._late += is_late
        os.pwrite(self._file, b"%12d %12d" % (self._steps, self._late), 0)

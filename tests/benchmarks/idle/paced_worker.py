"""The worker of an engine whose steps take a GPU's time (`paced`). Only the engine imports it."""

from __future__ import annotations

import os
import time
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.worker.cpu_worker import CPUWorker

from tests.benchmarks.idle.paced import FACTOR, FILE
from tests.benchmarks.idle.virtual import H200


class PacedWorker(CPUWorker):  # type: ignore[misc]
    """The worker of an engine for CPUs, each step of which takes a GPU's time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._factor = float(os.environ[FACTOR])
        self._file = os.open(os.environ[FILE], os.O_WRONLY)
        self._steps = self._late = 0
        self._busy_s = 0.0

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        began_s = time.monotonic()
        output = super().execute_model(scheduler_output)
        scheduled = scheduler_output.num_scheduled_tokens.values()
        decoding = sum(tokens == 1 for tokens in scheduled)
        prompt_s = (sum(scheduled) - decoding) / H200.prefill_tokens_per_s
        if scheduled:
            takes_s = self._factor * (H200.step_ms(decoding) / 1000 + prompt_s)
            left_s = began_s + takes_s - time.monotonic()
            self._busy_s += len(scheduled) * (takes_s + max(0.0, -left_s))
            self._count(is_late=left_s < 0)
            time.sleep(max(0.0, left_s))
        return output

    def _count(self, *, is_late: bool) -> None:
        self._steps += 1
        self._late += is_late
        os.pwrite(self._file, b"%12d %12d %12d" % (self._steps, self._late, 1000 * self._busy_s), 0)

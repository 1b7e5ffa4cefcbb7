"""vLLM's statistics in, reports to the board out. The only reader of vLLM's statistics."""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from vllm_plugin.board import Board, StepReport

# Between back-to-back steps no more than this passes; a longer gap was idleness.
_BACK_TO_BACK_S = 1.0


class BoardStatLogger(StatLoggerBase):
    """Tells the board of every step. Inert while there is no board (no profile selected)."""

    def __init__(self, board: Board | None, async_scheduling: bool) -> None:
        self._board = board
        # With asynchronous scheduling `elapsed_ms` times only the blocking wait for the
        # result, so a step's length is the interval between consecutive reports.
        self._by_interval = async_scheduling
        self._last_at_s: float | None = None

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        if self._board is None or scheduler_stats is None:
            return
        at_s = time.time()
        details = scheduler_stats.iteration_details
        batch: int | None = None
        decode_only = False
        elapsed_s = 0.0
        if details is not None and not details.is_dummy:
            batch = details.num_ctx_requests + details.num_generation_requests
            decode_only = details.num_ctx_requests == 0
            elapsed_s = details.elapsed_ms / 1000
            if self._by_interval:
                if self._last_at_s is not None and at_s - self._last_at_s < _BACK_TO_BACK_S:
                    elapsed_s = max(elapsed_s, at_s - self._last_at_s)
                else:
                    decode_only = False  # no telling how long it took: keep it out of the fit
            self._last_at_s = at_s
        self._board.stepped(
            StepReport(
                at_s=at_s,
                running=scheduler_stats.num_running_reqs,
                waiting=(
                    scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
                ),
                kv_cache_usage=scheduler_stats.kv_cache_usage,
                preempted=iteration_stats.num_preempted_reqs if iteration_stats else 0,
                batch=batch,
                decode_only=decode_only,
                elapsed_s=elapsed_s,
            )
        )

    def log_engine_initialized(self) -> None:
        """vLLM calls this once; there is nothing to say that the self-test did not say."""

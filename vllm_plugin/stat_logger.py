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

    def __init__(
        self, board: Board | None, async_scheduling: bool, tokens_per_sequence: int = 1
    ) -> None:
        self._board = board
        # With asynchronous scheduling `elapsed_ms` times only the blocking wait for the
        # result, so a step's length is the interval between consecutive reports.
        self._by_interval = async_scheduling
        # Of a sequence in a decode step, drafts of speculative decoding included.
        self._tokens_per_sequence = tokens_per_sequence
        self._last_at_s: float | None = None
        self._was_idle = True

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
        running = scheduler_stats.num_running_reqs
        waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
        preempted = iteration_stats.num_preempted_reqs if iteration_stats else 0
        usage = scheduler_stats.kv_cache_usage
        details = scheduler_stats.iteration_details
        if details is None or details.is_dummy:
            report = StepReport(at_s, running, waiting, usage, preempted, None, False, 0.0)
        else:
            decoding = details.num_generation_requests
            decode_only = details.num_ctx_requests == 0
            elapsed_s = details.elapsed_ms / 1000
            if self._by_interval:
                elapsed_s, known = self._interval(at_s, elapsed_s, decode_only)
                decode_only = decode_only and known
                self._last_at_s = at_s
            report = StepReport(
                at_s,
                running,
                waiting,
                usage,
                preempted,
                details.num_ctx_requests + decoding,
                decode_only,
                elapsed_s,
                details.num_ctx_tokens,
                decoding,
                # vLLM counts what a preempted sequence computes again as generation.
                details.num_generation_tokens > decoding * self._tokens_per_sequence,
            )
        self._was_idle = not running and not waiting
        self._board.stepped(report)

    def _interval(self, at_s: float, elapsed_s: float, decode_only: bool) -> tuple[float, bool]:
        """Seconds of a step that ended now, and whether they are known (else at least those)."""
        last_at_s = self._last_at_s
        if last_at_s is None or at_s - last_at_s >= _BACK_TO_BACK_S:
            return elapsed_s, False
        if self._was_idle and not decode_only:
            return elapsed_s, False  # the first prompt after a pause: the pause is not its time
        return max(elapsed_s, at_s - last_at_s), True

    def log_engine_initialized(self) -> None:
        """vLLM calls this once; there is nothing to say that the self-test did not say."""

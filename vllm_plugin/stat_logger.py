"""vLLM's statistics in, reports to the board out. The only reader of vLLM's statistics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from vllm_plugin.board import Board, StepReport

# Between back-to-back steps no more than this passes; a longer gap was idleness, or a pause.
_BACK_TO_BACK_S = 1.0


class BoardStatLogger(StatLoggerBase):
    """Tells the board of every step. Inert while there is no board (no profile selected)."""

    def __init__(
        self, board: Board | None, async_scheduling: bool, tokens_per_sequence: int = 1
    ) -> None:
        self._board = board
        # With asynchronous scheduling `elapsed_ms` times only the blocking wait for the result.
        self._asynchronous = async_scheduling
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
        intervals = iteration_stats.inter_token_latencies_iter if iteration_stats else ()
        usage = scheduler_stats.kv_cache_usage
        details = scheduler_stats.iteration_details
        if details is None or details.is_dummy:
            report = StepReport(at_s, running, waiting, usage, preempted, None, False, 0.0)
        else:
            decoding = details.num_generation_requests
            decode_only = details.num_ctx_requests == 0
            elapsed_s = details.elapsed_ms / 1000
            if self._asynchronous:
                between_s = self._between_steps(intervals, preempted)
                if between_s is not None:
                    elapsed_s = between_s
                elif decode_only:
                    decode_only = False  # a step of unknown length
                else:
                    elapsed_s = self._since_last(at_s, elapsed_s)
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
                outputs=len(intervals),
                generated=iteration_stats.num_generation_tokens if iteration_stats else 0,
            )
        self._was_idle = not running and not waiting
        self._board.stepped(report)

    @staticmethod
    def _between_steps(intervals: Sequence[float], preempted: int) -> float | None:
        """Seconds from the step before to this one by the engine core's clock; None: unknown.

        `intervals`: of each sequence that decoded, the time since its last output. One that took
        part in the step before has just the time between the two, whatever the reports' way to
        this process; one that sat out has more. Those that sat out were preempted, and vLLM tells
        of that with their next output.
        """
        if len(intervals) <= preempted:
            return None
        shortest_s = min(intervals)
        return shortest_s if shortest_s < _BACK_TO_BACK_S else None

    def _since_last(self, at_s: float, waited_s: float) -> float:
        """Seconds of a step in which nothing decoded: since the last report, as there is no other
        clock; after a pause at least what was waited for it."""
        last_at_s = self._last_at_s
        if last_at_s is None or self._was_idle or at_s - last_at_s >= _BACK_TO_BACK_S:
            return waited_s
        return max(waited_s, at_s - last_at_s)

    def log_engine_initialized(self) -> None:
        """vLLM calls this once; there is nothing to say that the self-test did not say."""

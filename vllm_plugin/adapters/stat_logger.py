"""Converts vLLM's statistics of each step into a SchedulerReport; their only reader."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from vllm_plugin.adapters.vllm_config import StepTiming
from vllm_plugin.state.engine_speed import SchedulerReport, lora_use_of
from vllm_plugin.state.engine_state import EngineState

# Steps back to back are no further apart; in a longer gap the engine was idle, or paused.
_BACK_TO_BACK_S = 1.0


class SchedulerStatLogger(StatLoggerBase):
    """Records every step in the engine's state."""

    def __init__(
        self,
        engine_state: EngineState,
        step_timing: StepTiming = StepTiming.WHOLE,
        tokens_per_sequence: int = 1,
        finished: Callable[[Sequence[Any], float], None] | None = None,
    ) -> None:
        """`finished`: called with the statistics of finished requests, and the time they ended."""
        self._engine_state = engine_state
        self._finished = finished
        self._step_timing = step_timing
        # In a decode step, drafts of speculative decoding included.
        self._tokens_per_sequence = tokens_per_sequence
        self._last_at_s: float | None = None
        self._was_idle = True
        # Prompt tokens of the steps since a pause, while nothing tells how long these took.
        self._untimed_tokens = 0

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        if self._finished is not None and iteration_stats and iteration_stats.finished_requests:
            self._finished(iteration_stats.finished_requests, iteration_stats.iteration_timestamp)
        if scheduler_stats is None:
            return
        at_s = time.time()
        running = scheduler_stats.num_running_reqs
        waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
        preempted = iteration_stats.num_preempted_reqs if iteration_stats else 0
        intervals = iteration_stats.inter_token_latencies_iter if iteration_stats else ()
        first_tokens = iteration_stats.time_to_first_tokens_iter if iteration_stats else ()
        usage = scheduler_stats.kv_cache_usage
        queries, hits = self._prefix_lookups(scheduler_stats)
        lora = lora_use_of(scheduler_stats)
        details = scheduler_stats.iteration_details
        if details is None or details.is_dummy:
            report = SchedulerReport(
                at_s,
                running,
                waiting,
                usage,
                preempted,
                prefix_queries=queries,
                prefix_hits=hits,
                lora=lora,
            )
        else:
            decoding = details.num_generation_requests
            decode_only = details.num_ctx_requests == 0
            prompt_tokens, elapsed_s = details.num_ctx_tokens, details.elapsed_ms / 1000
            if self._step_timing is not StepTiming.WHOLE:
                since_s = self._since_last_step(intervals, preempted)
                if since_s is None and not decode_only:
                    since_s = self._since_last_report(at_s, elapsed_s, first_tokens)
                prompt_tokens += self._untimed_tokens
                if since_s is None:  # a step of unknown length
                    self._untimed_tokens, decode_only, prompt_tokens = prompt_tokens, False, 0
                else:
                    self._untimed_tokens, elapsed_s = 0, since_s
                self._last_at_s = at_s
            report = SchedulerReport(
                at_s,
                running,
                waiting,
                usage,
                preempted,
                batch=details.num_ctx_requests + decoding,
                decode_only=decode_only,
                elapsed_s=elapsed_s,
                prompt_tokens=prompt_tokens,
                decoding=decoding,
                # vLLM counts the tokens that a preempted sequence computes again as generated.
                recomputing=details.num_generation_tokens > decoding * self._tokens_per_sequence,
                outputs=len(intervals),
                generated=iteration_stats.num_generation_tokens if iteration_stats else 0,
                prefix_queries=queries,
                prefix_hits=hits,
                lora=lora,
            )
        self._was_idle = not running and not waiting
        if self._was_idle:
            self._untimed_tokens = 0  # of a request that was aborted
        self._engine_state.record(report)

    @staticmethod
    def _prefix_lookups(scheduler_stats: Any) -> tuple[int, int]:
        """Returns the prompt tokens that were looked up in the prefix cache, and those found.

        A connector, if there is one, is asked for what the cache in the accelerator's memory
        lacks: what it finds is found, and what it is asked for was looked up before.
        """
        cache, further = (
            scheduler_stats.prefix_cache_stats,
            scheduler_stats.connector_prefix_cache_stats,
        )
        if further is None:
            return cache.queries, cache.hits
        # The cache itself may be off, and then has no queries.
        return max(cache.queries, cache.hits + further.queries), cache.hits + further.hits

    @staticmethod
    def _since_last_step(intervals: Sequence[float], preempted: int) -> float | None:
        """Returns the seconds since the previous step by the engine core's clock; None: unknown.

        `intervals`: for each sequence that decoded, the seconds since its last output. For one
        that ran in the previous step this is the time between the two steps, however late their
        reports arrive; for one that was preempted meanwhile it is longer. vLLM reports such
        preemptions together with the sequence's next output.
        """
        if len(intervals) <= preempted:
            return None
        shortest_s = min(intervals)
        return shortest_s if shortest_s < _BACK_TO_BACK_S else None

    def _since_last_report(
        self, at_s: float, waited_s: float, first_tokens: Sequence[float]
    ) -> float | None:
        """Returns the seconds of a step in which nothing decoded: the time since the last report,
        for want of another clock. After a pause: the time for which the result was awaited, or if
        it was not, the time to the first token of the request that ended the pause, which is of all
        steps since then. None: unknown."""
        last_at_s, awaits = self._last_at_s, self._step_timing is StepTiming.WAIT
        if last_at_s is None or self._was_idle or at_s - last_at_s >= _BACK_TO_BACK_S:
            return waited_s if awaits else max(first_tokens, default=None)
        if self._untimed_tokens:
            return max(first_tokens, default=None)
        return max(waited_s, at_s - last_at_s)

    def log_engine_initialized(self) -> None:
        """Does nothing: vLLM requires the method, and the self-test has logged all there is."""

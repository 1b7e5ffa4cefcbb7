"""What the scheduler reports of each step, and the engine's speed that follows from it.

Pure: every time is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from vllm_plugin.contracts.token_time import TokenTimes
from vllm_plugin.state.step_time import StepSamples, StepTime
from vllm_plugin.state.steps import Prefill, StepRing

# A fit takes up to 2 ms of the event loop, and is reported no more often; in ten times that while
# the batch grows beyond what the engine was seen with.
FIT_EVERY_S: Final = 1.0
FIT_GROWING_EVERY_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class LoraUse:
    """The LoRA adapters of requests in the scheduler, sorted: of those that run, and that wait."""

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


NO_LORA: Final = LoraUse()


def lora_use_of(scheduler_stats: Any) -> LoraUse:
    """Reads vLLM's counts of requests by adapter. One with requests of one kind is in both."""
    running, waiting = scheduler_stats.running_lora_adapters, scheduler_stats.waiting_lora_adapters
    if not running and not waiting:
        return NO_LORA
    return LoraUse(_in_use(running), _in_use(waiting))


def _in_use(requests: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(sorted(name for name, count in requests.items() if count))


class SchedulerLoad(NamedTuple):
    """What is in the scheduler, as reported: each change of it wakes the readers of the state, so
    values that change with each step are rounded. `prefilling`: sequences whose prefill is not
    complete."""

    running: int = 0
    waiting: int = 0
    prefilling: int = 0
    kv_cache_usage: float = 0.0
    lora: LoraUse = NO_LORA


@dataclass(frozen=True, slots=True)
class SchedulerReport:
    """One report of the scheduler; `batch` is None when no step ran (idle, or an abort)."""

    at_s: float
    running: int
    waiting: int
    kv_cache_usage: float
    preempted: int
    batch: int | None = None
    decode_only: bool = False
    elapsed_s: float = 0.0
    prompt_tokens: int = 0  # computed in this step
    decoding: int = 0  # sequences of the batch that were past their prompts
    recomputing: bool = False  # one of these was preempted and computes its tokens again
    outputs: int = 0  # sequences that received tokens, not their first ones
    generated: int = 0  # tokens of all sequences
    prefix_queries: int = 0  # prompt tokens looked up in the prefix cache
    prefix_hits: int = 0  # those of them that were found
    lora: LoraUse = NO_LORA

    @property
    def load(self) -> SchedulerLoad:
        """What is in the scheduler after this step."""
        in_prefill = 0
        if self.batch is not None and not self.decode_only:
            in_prefill = self.batch - self.decoding
        return SchedulerLoad(
            self.running,
            self.waiting,
            self.waiting + in_prefill,
            round(self.kv_cache_usage, 3),
            self.lora,
        )


class EngineSpeed:
    """Statistics of all steps, and what a step takes by its batch."""

    def __init__(self, slots_total: int) -> None:
        self.steps = StepRing()
        self.prefill = Prefill()
        self.step_time: StepTime | None = None
        self.batch_seen = 0  # the largest, as of the last fit
        self._step_samples = StepSamples(slots_total)
        self._token_times = TokenTimes()
        self._fitted_at_s = float("-inf")
        self._fit_document: dict[str, Any] | None = None
        self._generated = 0  # tokens

    def record(self, report: SchedulerReport, batch: int) -> bool:
        """Adds a step of `batch` sequences. Returns whether `batch_seen` grew."""
        self._generated += report.generated
        elapsed_s = report.elapsed_s
        self.steps.record(report.at_s, elapsed_s, batch, decode_only=report.decode_only)
        prompt_s = 0.0
        if report.prompt_tokens:
            fit = self.step_time if report.decoding else None
            # With a poor fit the decode part would be a guess: the whole step counts as prefill.
            decode_s = fit.seconds(report.decoding) if fit and fit.good else 0.0
            prompt_s = max(0.0, elapsed_s - decode_s)
            self.prefill.record(report.prompt_tokens, elapsed_s, decode_s)
        elif report.decode_only and not report.recomputing:
            self._step_samples.record(batch, elapsed_s)
            self._step_samples.generated(report.outputs, report.generated)
        self._token_times.record(report.at_s, elapsed_s, batch, report.decoding, prompt_s)
        return self.fit(report.at_s)

    def fit(self, now_s: float) -> bool:
        """Fits the step time if the last fit is old enough, and compares the traffic with it.
        Returns whether `batch_seen` grew."""
        growing = self._token_times.batch_seen > self.batch_seen
        every_s = FIT_GROWING_EVERY_S if growing else FIT_EVERY_S
        # A clock that is set back does not stop the fits.
        if 0 <= now_s - self._fitted_at_s < every_s:
            return False
        self._fitted_at_s = now_s
        self.batch_seen = self._token_times.batch_seen
        if self._step_samples.fresh:
            self.step_time = self._step_samples.fit()
        fit = self.step_time
        if fit is not None:
            traffic = self._token_times.traffic(fit.seconds, now_s)
            self._fit_document = fit.document() | traffic.document()
        return growing

    def seconds(self, batch: int) -> float:
        """Returns the expected seconds of a step of `batch` sequences; 0: unknown."""
        return 0.0 if self.step_time is None else self.step_time.seconds(batch)

    def document(self) -> dict[str, Any]:
        """Returns the fields of the engine's state that grow with every step."""
        rate = self.prefill.tokens_per_s()
        return {
            "steps_by_batch": self.steps.by_batch(),
            "last_batches": self.steps.last_batches(),
            "steps_total": self.steps.count,
            "busy_seconds_total": round(self.steps.busy_s, 6),
            "batch_seen": self.batch_seen,
            "step_time": self._fit_document,
            "generated_tokens_total": self._generated,
            "prefill": self.prefill.document(),
            "prefill_tokens_per_s": None if rate is None else round(rate, 1),
        }

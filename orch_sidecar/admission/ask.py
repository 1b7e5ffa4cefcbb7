"""What admission is asked and told: values that the core, its shell and the simulator share.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm_plugin.profile import ServiceClass


@dataclass(slots=True)
class Ask:
    """What a request asks of an engine.

    `cost` in sequences. `prompt_tokens`: of all its prompts together, as well as is known.
    `max_tokens`: the most that each sequence may generate, None where the request does not say.
    `deadline_ms`: its first token must come within that time. `max_wait_ms`: its slot must.
    """

    service_class: ServiceClass
    cost: int = 1
    prompt_tokens: int = 0
    max_tokens: int | None = None
    deadline_ms: float | None = None
    max_wait_ms: float | None = None
    may_queue: bool = True


@dataclass(frozen=True, slots=True)
class Queued:
    """It waits: how many are ahead of it, and when it should start (ms from now) if that can be
    told."""

    position: int
    predicted_start_ms: int | None


@dataclass(frozen=True, slots=True)
class StepTime:
    """t_step(b) = t0 + c * b^alpha, measured by the engine up to a batch of `largest`.

    `tokens`: of a sequence in a step, on average; more than one with speculative decoding.
    """

    t0_ms: float
    c_ms: float
    alpha: float
    largest: int
    tokens: float = 1.0

    def ms(self, batch: int) -> float:
        """Milliseconds of a decode step of `batch` sequences."""
        return float(self.t0_ms + self.c_ms * batch**self.alpha)

    def token_ms(self, batch: int) -> float:
        """Milliseconds of a token of each of `batch` sequences."""
        return self.ms(batch) / self.tokens


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine says of itself. None: not known, and nothing is guessed in its place.

    `kv_tokens_total`, `kv_block_tokens` (it is given out in blocks of so many) and `kv_usage` (0
    to 1): the KV cache. `prefilling`: sequences whose prompts wait or were being read, and need not
    be in that usage. `scheduled`: of leases, in the scheduler; those beyond are still on their way
    there. `prefill_tokens_per_s`: measured. `chunk_tokens`: the most of one prompt
    that a step reads beside others. `leases`: with their costs, those of this sidecar that the
    engine has; told with a new epoch, for a request may reach an engine under its predecessor's.
    """

    epoch: str
    slots_total: int
    foreign: int = 0
    ctx_max: int | None = None
    kv_tokens_total: int | None = None
    kv_usage: float = 0.0
    preemptions_total: int = 0
    step_time: StepTime | None = None
    prefill_tokens_per_s: float | None = None
    kv_block_tokens: int = 1
    chunk_tokens: int | None = None
    leases: tuple[tuple[str, int], ...] = ()
    prefilling: int = 0
    scheduled: int | None = None

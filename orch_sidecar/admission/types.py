"""What admission is asked and told: values that the core, its shell and the simulator share.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from vllm_plugin.profile import ServiceClass


@dataclass(slots=True)
class AdmissionRequest:
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
class KvGroup:
    """`count` equal groups of layers, in each of which a sequence of L tokens takes

        min(ceil(L / block_tokens), blocks_most) + blocks_extra

    blocks. `blocks_reading` takes the place of `blocks_most` while prompts are read, if all
    tokens of a step are of one prompt. None: there is no such bound.
    """

    block_tokens: int
    blocks_most: int | None = None
    blocks_reading: int | None = None
    blocks_extra: int = 0
    count: int = 1

    def blocks_of(self, tokens: float, most: int | None) -> int:
        """Blocks of a sequence in all of these groups, `most` of them in each but for the extra."""
        blocks = ceil(tokens / self.block_tokens)
        if most is not None and blocks > most:
            blocks = most
        return self.count * (blocks + self.blocks_extra)


@dataclass(frozen=True, slots=True)
class KvCache:
    """The KV cache: a pool of blocks that all groups of layers share."""

    blocks_total: int
    groups: tuple[KvGroup, ...]

    def blocks_of(self, tokens: float) -> int:
        """Blocks that a sequence of so many tokens takes, once its prompt was read."""
        return sum(group.blocks_of(tokens, group.blocks_most) for group in self.groups)

    def blocks_while_read(self, tokens: float) -> int:
        """The most blocks that a prompt of so many tokens takes while it is read."""
        return sum(
            group.blocks_of(tokens, group.blocks_reading or group.blocks_most)
            for group in self.groups
        )

    def swing(self, tokens: float) -> int:
        """Blocks that a sequence of so many tokens gives back and takes again, as what it looks
        back at begins in one block or in the next."""
        return sum(
            group.count
            for group in self.groups
            if group.blocks_most is not None
            and 1 < group.blocks_most <= ceil(tokens / group.block_tokens)
        )

    @property
    def reading_most(self) -> int:
        """The most blocks that all prompts of a step take while they are read, beyond those that
        they keep: they share its tokens."""
        return sum(
            group.count * (group.blocks_reading - group.blocks_most)
            for group in self.groups
            if group.blocks_reading is not None and group.blocks_most is not None
        )


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine says of itself. None: not known, and nothing is guessed in its place.

    `kv`: the KV cache, and `kv_usage` (0 to 1) how full it is. `prefilling`: sequences whose
    prompts wait or were being read, and need not be in that usage; `waiting`: those of them that
    are not begun. `scheduled`: of leases, in the scheduler; those beyond are still on their way
    there. `prefill_tokens_per_s`: measured. `chunk_tokens`: the most of one prompt that a step
    reads beside others. `leases`: with their costs, those of this sidecar that the engine has;
    reported with a new epoch, for a request may reach an engine under its predecessor's.
    """

    epoch: str
    slots_total: int
    foreign: int = 0
    ctx_max: int | None = None
    kv: KvCache | None = None
    kv_usage: float = 0.0
    preemptions_total: int = 0
    step_time: StepTime | None = None
    prefill_tokens_per_s: float | None = None
    chunk_tokens: int | None = None
    leases: tuple[tuple[str, int], ...] = ()
    prefilling: int = 0
    waiting: int = 0
    scheduled: int | None = None

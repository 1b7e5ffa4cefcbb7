"""Values that the controller, its gate and the simulator share: requests, leases, engine reports.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.contracts.kv_cache import KvCache
from vllm_plugin.contracts.profile import ServiceClass


# No NamedTuple: it takes twice as long to make or to read. With a hash it may be a default.
@dataclass(slots=True, unsafe_hash=True)
class KvNeed:
    """KV cache blocks that a request is expected to take.

    `prompt`: after its prefill. `reading`: in addition, during its prefill. `output`: in addition,
    at its end; None: unknown. `swing`: blocks among these that it frees for a while and takes
    again.
    """

    prompt: int = 0
    reading: int = 0
    output: int | None = None
    swing: int = 0

    @property
    def at_end(self) -> int:
        """The blocks at its end, as far as they are known."""
        return self.prompt + (self.output or 0)


NO_KV_NEED: Final = KvNeed()


@dataclass(slots=True)
class AdmissionRequest:
    """What a request needs of an engine, and how long it can wait.

    `cost`: sequences. `prompt_tokens`: of all prompts together, estimated where not counted.
    `max_tokens`: limit per sequence; None: no limit was requested. `deadline_ms`: time to the
    first token. `max_wait_ms`: time to the slot. `tpot_ms`: time per token. `adapter`: the LoRA
    adapter, None for the base model. `is_later_part`: of a request that runs in parts, and not its
    first: it takes no place in a queue, and its wait has no limit. `identity`: equal for a request
    that comes back unchanged, 0 if unknown. `key`: digest of the client's API key, or of its flow;
    empty: none. `weight`: share of the key within its class. `parent`: instance of the parent
    sidecar that sent it; empty: none. Set by admission: `work`, the expected output tokens of all
    sequences; `reclaimed`, how often it had to give its slots back; `delay_s`, what the delay clock
    showed when it was first queued, None if it never was; `kv`, its expected KV blocks.
    """

    service_class: ServiceClass
    cost: int = 1
    prompt_tokens: int = 0
    max_tokens: int | None = None
    key: bytes = b""
    weight: float = 1.0
    adapter: str | None = None
    is_later_part: bool = False
    deadline_ms: float | None = None
    max_wait_ms: float | None = None
    may_queue: bool = True
    identity: int = 0
    work: float = 0.0
    reclaimed: int = 0
    parent: str = ""
    tpot_ms: float | None = None
    delay_s: float | None = None
    kv: KvNeed = field(default=NO_KV_NEED, compare=False)


@dataclass(slots=True)
class Queued:
    """The answer to a request that is queued behind `position` others."""

    position: int
    predicted_start_ms: int | None


@dataclass(frozen=True, slots=True)
class StepTime:
    """t_step(b) = t0 + c * b^alpha, measured by the engine up to a batch of `largest`.

    `tokens`: mean tokens of a sequence per step; more than one with speculative decoding. `good`:
    there are enough samples to predict from it. `traffic`: the p95 of the measured time per token
    in the last seconds, as a multiple of this one; `prompt_share`: the share of that time that
    prompts took.
    """

    t0_ms: float
    c_ms: float
    alpha: float
    largest: int
    tokens: float = 1.0
    good: bool = True
    traffic: float = 1.0
    prompt_share: float = 0.0

    def ms(self, batch: int) -> float:
        """Returns the milliseconds of a decode step of `batch` sequences."""
        return float(self.t0_ms + self.c_ms * batch**self.alpha)

    def token_ms(self, batch: int) -> float:
        """Returns the milliseconds per token of each of `batch` sequences."""
        return self.ms(batch) / self.tokens


@dataclass(slots=True)
class Lease:
    """The right to run `cost` sequences in the engine of this `epoch`.

    `request`: None for a lease that the engine reported and this sidecar does not know.
    `granted_at`: seconds of the caller's clock. `kv`: its committed KV blocks. `closing`: the
    response was cut short, and the engine has yet to confirm the end. `expected_tokens`: those that
    count for its key until it ends. `reclaimed`: it ends for another request, and counts nothing
    for its key. `offered`: the engine had booked its slots. `read_from`, `read_to`: prompt tokens
    that the engine had read when it was granted, and will have read with its own
    (`prediction.prompts`).
    """

    id: str
    cost: int
    epoch: str
    request: AdmissionRequest | None = field(default=None, compare=False)
    granted_at: float = field(default=0.0, compare=False)
    kv: KvNeed = field(default=NO_KV_NEED, compare=False)
    closing: bool = field(default=False, compare=False)
    expected_tokens: int = field(default=0, compare=False)
    reclaimed: bool = field(default=False, compare=False)
    offered: bool = field(default=False, compare=False)
    read_from: float = field(default=0.0, compare=False)
    read_to: float = field(default=0.0, compare=False)


@dataclass(slots=True)
class Decision:
    """The outcome of a queued request. Its ticket is also the id of its lease."""

    ticket: str
    outcome: Lease | Refusal


# A lease that ended: the tokens that its request generated (None: it did not complete), whether the
# engine served it, and when it ended.
EndedLease = tuple[Lease, int | None, bool, float]


class EngineReport(NamedTuple):
    """The state that an engine reports. None: unknown, and never replaced by a guess.

    `kv_usage`: share of the KV cache in use (0 to 1). `prefilling`: sequences whose prefill is
    not complete, which that usage may miss; `waiting`: those of them that have not started.
    `batch_seen`: the largest batch of which the engine has made some steps; all slots if it
    generates nothing. `scheduled`: sequences of leases in the scheduler; the others are still on
    their way to it.
    `max_loras`: LoRA adapters in a batch, 0 without LoRA; `adapters_running`: of all requests in
    it; `adapters_foreign`: of other users' requests; `adapters_wanted`: those that other users have
    waited for longer than this one; `adapters_joinable`: none of these has waited for long.
    `sidecars`: readers of its state, this one included; `contended`: others claim slots;
    `foreign_interactive`: sequences of others' interactive requests, a part of `foreign`.
    `chunk_tokens`: the most tokens of one prompt that a step prefills beside decodes;
    `step_tokens`: of all prompts and decodes. `leases`: ids and costs of this sidecar's leases in
    the engine; reported with a new epoch, since a request may reach an engine with a lease of its
    predecessor.
    """

    epoch: str
    slots_total: int
    foreign: int = 0
    ctx_max: int | None = None
    kv: KvCache | None = None
    kv_usage: float = 0.0
    preemptions_total: int = 0
    batch_seen: int = 0
    step_time: StepTime | None = None
    prefill_tokens_per_s: float | None = None
    chunk_tokens: int | None = None
    step_tokens: int | None = None
    leases: tuple[tuple[str, int], ...] = ()
    prefilling: int = 0
    waiting: int = 0
    scheduled: int | None = None
    sidecars: int = 1
    contended: bool = False
    foreign_interactive: int = 0
    max_loras: int = 0
    adapters_running: frozenset[str] = frozenset()
    adapters_foreign: frozenset[str] = frozenset()
    adapters_wanted: frozenset[str] = frozenset()
    adapters_joinable: bool = True


class Owner(Protocol):
    """A request, as its ticket knows it."""

    @property
    def is_unseen(self) -> bool:
        """Whether the engine runs the request, and its client has seen nothing of the response."""

    def reclaim(self) -> None:
        """Aborts the request in the engine; it is queued again, unseen by its client."""


@dataclass(slots=True)
class QueuedRequest:
    """A queued request.

    `expiry_reason`: that of its first time limit, at `expires_at`. `delay_s`: what the delay clock
    showed when it was first queued. `expected_tokens`: those that its key will use for it.
    """

    ticket: str
    request: AdmissionRequest
    arrived: float
    expires_at: float
    expiry_reason: Reason
    delay_s: float
    expected_tokens: int = 1

"""Defines the types and ranges of the fields of an engine's state document. Pure.

An engine of another version may omit each of them; their defaults here mean nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType

from vllm_plugin.contracts.lease_protocol import LEASE_PATTERN

_MAX_SLOTS: Final = 100_000  # vLLM's schedulers have some thousands
_MAX_SEQUENCES: Final = 10_000_000
_MAX_TOKENS: Final = 10**12
_MAX_EVENTS: Final = 2**63 - 1
_MAX_SECONDS: Final = 10**12
_MAX_MILLISECONDS: Final = 10**9
_MAX_ITEMS: Final = 1000  # steps; readers of this sidecar get them all
_MAX_GROUPS: Final = 1000  # of layers; each entry costs time at every admission decision
_MAX_EXPONENT: Final = 10  # of the batch in a step's time; measured ones are around 1

_Name = Annotated[str, Meta(min_length=1)]
_Names = list[_Name]
_Object = dict[str, Any]
_Slots = Annotated[int, Meta(ge=0, le=_MAX_SLOTS)]
_SomeSlots = Annotated[int, Meta(ge=1, le=_MAX_SLOTS)]
_Sequences = Annotated[int, Meta(ge=0, le=_MAX_SEQUENCES)]
_Tokens = Annotated[int, Meta(ge=0, le=_MAX_TOKENS)]
_SomeTokens = Annotated[int, Meta(ge=1, le=_MAX_TOKENS)]
_Events = Annotated[int, Meta(ge=0, le=_MAX_EVENTS)]
_Seconds = Annotated[float, Meta(ge=0, le=_MAX_SECONDS)]
_Milliseconds = Annotated[float, Meta(ge=0, le=_MAX_MILLISECONDS)]
_Share = Annotated[float, Meta(ge=0, le=1)]
# By batch size, which is a text in JSON: decode steps, and their seconds.
_Batch = Annotated[str, Meta(pattern=rf"^[0-9]{{1,{len(str(_MAX_SEQUENCES))}}}\Z")]
_Steps = dict[_Batch, tuple[_Events, _Seconds]]


class _StepTime(Struct):
    t0_ms: _Milliseconds
    c_ms: _Milliseconds
    alpha: Annotated[float, Meta(ge=0, le=_MAX_EXPONENT)]
    largest: _Slots
    quality: str
    tokens: Annotated[float, Meta(ge=0, le=_MAX_SLOTS)] = 1  # of a sequence in a step
    traffic: Annotated[float, Meta(ge=0, le=_MAX_SLOTS)] = 1  # times the fit
    prompt_share: _Share = 0


class _Prefill(Struct):
    tokens: Annotated[float, Meta(ge=0, le=_MAX_EVENTS)]
    seconds: _Seconds


class _PrefixCache(Struct):
    queries_total: _Events
    hits_total: _Events


class _KvGroup(Struct):
    block_tokens: _SomeTokens
    count: Annotated[int, Meta(ge=1, le=_MAX_GROUPS)] = 1
    blocks_most: _SomeTokens = 1
    blocks_reading: _SomeTokens = 1
    blocks_extra: _Tokens = 0


class _Lora(Struct):
    adapters: _Names
    running: _Names
    waiting: _Names
    foreign: _Names = []
    wanted: _Names = []
    resident: _Names = []
    joinable: bool = True
    loads_total: _Events = 0


class _Claim(Struct):
    cost: _SomeSlots
    urgent: bool
    more: _Slots = 0


class Offer(Struct):
    """The fields of an OFFER event."""

    cost: _SomeSlots
    number: Annotated[int, Meta(ge=1, le=_MAX_EVENTS)]


class Fields(Struct):
    """The fields of the document. Others are kept as they are."""

    api_version: _Name = ""
    epoch: _Name = ""
    profile: _Name = ""
    measurement_type: _Name = ""
    engine: _Name = ""
    engine_version: _Name = ""
    pool: _Name = ""
    state: _Name = ""
    message: str | None = None
    gpu: str = ""
    precision: str = ""
    weights: str = ""
    conditions: _Object = {}
    observed_at: str = ""
    batching: bool = False
    slots_total: _Slots = 0  # 0 until the engine of a child sidecar reports
    slots_free: _Slots = 0
    unleased: _Name = ""
    foreign: _Sequences = 0
    leased: _Sequences = 0
    sidecars: _Sequences = 0
    contended: bool = False
    foreign_interactive: _Sequences = 0
    claim: _Claim | None = None
    claimed: _Events = 0
    waits: bool = False
    no_slot_total: _Events = 0
    running: _Sequences = 0
    waiting: _Sequences = 0
    prefilling: _Sequences = 0
    peak: _Sequences = 0
    batch_seen: _Sequences = 0
    gpu_count: _Sequences = 0
    ctx_max: _SomeTokens = 1
    kv_tokens_total: _Tokens = 0
    kv_blocks_total: _Tokens = 0
    kv_blocks_kept: _Tokens = 0
    kv_groups: Annotated[list[_KvGroup], Meta(max_length=_MAX_GROUPS)] = []
    kv_cache_usage: _Share = 0
    preemptions_total: _Events = 0
    requests_total: _Events = 0
    steps_total: _Events = 0
    generated_tokens_total: _Events = 0
    busy_seconds_total: _Seconds = 0
    prefill_tokens_per_s: Annotated[float, Meta(ge=0, le=_MAX_TOKENS)] | None = None
    step_time: _StepTime | None = None
    steps_by_batch: _Steps = {}
    last_batches: Annotated[list[_Sequences], Meta(max_length=_MAX_ITEMS)] = []
    prefill: _Prefill | UnsetType = UNSET
    prefix_cache: _PrefixCache | UnsetType = UNSET
    models: _Names = []
    lora: _Lora | UnsetType = UNSET
    supported_workloads: _Names = []
    leases: list[Annotated[str, Meta(pattern=LEASE_PATTERN)]] = []
    queue: _Object = {}
    rate_limits: _Object = {}
    features: _Object = {}

"""Computes the blocks of the KV cache that a sequence takes, by groups of layers.

vLLM gives each group of layers blocks of its own from one pool, so a sequence takes the sum over
the groups: full attention takes a block for each `block_tokens` tokens, a sliding window no more
than the window spans, a state-space layer a fixed number. `groups_of` reads the groups from the
engine core's cache managers (`EngineCore.get_kv_cache_group_metadata`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm_plugin.contracts.kv_cache import KvCache, KvGroup

_FULL_KINDS: Final = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
_SLIDING_KINDS: Final = frozenset({"sliding_window", "sliding_window_mla"})
# A state-space layer keeps the state before a token and the one after it.
_STATES_PER_SEQUENCE: Final = 2


_DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4}
_ONE_BYTE_DTYPES: Final = ("fp8", "int8")
# Fields of models whose layers keep something other than the keys and values of each token.
_UNKNOWN_CACHE_FIELDS: Final = ("kv_lora_rank", "layers_block_type", "hybrid_override_pattern")


def bytes_per_token(text_config: Any, kv_cache_dtype: str) -> int | None:
    """Returns the bytes that a token's keys and values take in all layers together, on all ranks.

    `text_config`: of the Hugging Face model. None: they are not of the same size in all layers, or
    the configuration does not tell.
    """
    if any(getattr(text_config, name, None) for name in _UNKNOWN_CACHE_FIELDS):
        return None
    heads = getattr(text_config, "num_attention_heads", None)
    layers = getattr(text_config, "num_hidden_layers", None)
    hidden = getattr(text_config, "hidden_size", None)
    if not heads or not layers or not hidden:
        return None
    kv_heads = getattr(text_config, "num_key_value_heads", None) or heads
    head = getattr(text_config, "head_dim", None) or hidden // heads
    size = 1 if kv_cache_dtype.startswith(_ONE_BYTE_DTYPES) else _DTYPE_BYTES.get(kv_cache_dtype)
    return None if size is None else int(2 * layers * kv_heads * head * size)


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The parts of an engine's configuration that determine the blocks of a sequence.

    `ctx_max`: tokens of the longest sequence. `ctx_max_blocks`: its blocks as computed by vLLM;
    None: unknown. `batches`: that may be in flight at once. `batch_tokens`: the limit of one
    batch. `draft_tokens`: computed with each token, and possibly rejected; `lookahead_tokens`:
    reserved beyond them; `retained_tokens`: kept below a sliding window. `mamba_mode`: which
    states are kept (`none`, `align` or `all`). `mamba_extra`: further state blocks.
    `attention_chunk`: tokens of a chunk of local attention.
    """

    ctx_max: int
    ctx_max_blocks: int | None
    batches: int
    batch_tokens: int
    draft_tokens: int = 0
    lookahead_tokens: int = 0
    retained_tokens: int = 0
    mamba_mode: str = "none"
    mamba_extra: int = 0
    attention_chunk: int | None = None


def groups_of(rows: Iterable[Mapping[str, Any]], engine: Scheduling) -> tuple[KvGroup, ...]:
    """Returns the groups, from a row for each: `kind`, `block_size` and `sliding_window`.

    Groups of unknown kinds are merged into one, which takes the blocks that vLLM computes for the
    longest sequence beyond the other groups', in proportion to the length.
    """
    known, unknown = [], 0
    for row in rows:
        group = _group(row, engine)
        if group is None:
            unknown += 1
        else:
            known.append(group)
    blocks = KvCache(0, tuple(known)).blocks_of(engine.ctx_max, reading=True)
    rest = max(unknown, (engine.ctx_max_blocks or 0) - blocks) if unknown else 0
    if rest:
        known.append(KvGroup(max(1, engine.ctx_max // rest)))
    return tuple(known)


def _group(row: Mapping[str, Any], engine: Scheduling) -> KvGroup | None:
    kind, block, window = row["kind"], row["block_size"], row["sliding_window"]
    ahead = _ceil(engine.draft_tokens + engine.lookahead_tokens, block)
    if kind in _FULL_KINDS:
        return KvGroup(block, blocks_extra=ahead)
    if kind in _SLIDING_KINDS:
        return _windowed(block, window + engine.retained_tokens, ahead, engine)
    if kind == "chunked_local_attention" and engine.attention_chunk is not None:
        return _chunked(block, engine.attention_chunk, ahead, engine)
    if kind == "mamba":
        if engine.mamba_mode == "all":
            return _windowed(block, _STATES_PER_SEQUENCE, engine.mamba_extra, engine)
        if engine.mamba_mode == "none":
            return KvGroup(block, 1, blocks_extra=engine.mamba_extra)
        # During prefill a checkpoint of the state may be kept, too.
        return KvGroup(block, _STATES_PER_SEQUENCE, _STATES_PER_SEQUENCE + 1, engine.mamba_extra)
    return None


def _windowed(block: int, window: int, extra: int, engine: Scheduling) -> KvGroup:
    """Returns the group of a sliding window, of which blocks are freed a step later.

    A sequence holds the window and the tokens in flight: one of each batch during decode, whole
    batches during prefill. Unaligned, they lie in one block more than they fill.
    """
    decoding = window - 1 + engine.batches * (1 + engine.draft_tokens)
    reading = window - 1 + engine.batches * engine.batch_tokens
    return KvGroup(
        block,
        1 + _ceil(decoding - 1, block),
        1 + _ceil(reading, block),
        extra,
    )


def _chunked(block: int, chunk: int, extra: int, engine: Scheduling) -> KvGroup:
    """Returns the group of local attention: a chunk is freed by the next one's first token."""
    decoding = chunk - 1 + engine.batches * (1 + engine.draft_tokens)
    reading = chunk + engine.batches * engine.batch_tokens
    unaligned = chunk % block != 0
    return KvGroup(
        block,
        _ceil(decoding, block) + unaligned,
        _ceil(reading, block) + unaligned,
        extra,
    )


def _ceil(tokens: int, block: int) -> int:
    return -(-tokens // block)

"""The KV cache of an engine core, made of vLLM's own parts and without an engine.

Imports vLLM: what needs it imports it late.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    get_kv_cache_config_from_groups,
    get_kv_cache_groups,
    resolve_kv_cache_block_sizes,
    update_kv_cache_capacity,
)
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

CTX_MAX: Final = 32_768
BATCH_TOKENS: Final = 2048
BLOCK: Final = 16
LAYERS: Final = 24
ATTENTION_CHUNK: Final = 8192
_ATTENTION: Final[dict[str, Any]] = {
    "block_size": BLOCK, "num_kv_heads": 4, "head_size": 64, "dtype": torch.float32,
}  # fmt: skip
FULL: Final = FullAttentionSpec(**_ATTENTION)


def _sliding(window: int) -> KVCacheSpec:
    return SlidingWindowSpec(**_ATTENTION, sliding_window=window)


def _states(block_size: int, mode: str) -> KVCacheSpec:
    floats = FULL.page_size_bytes // 4
    return MambaSpec(block_size, ((floats,),), (torch.float32,), mamba_cache_mode=mode)


def _one_full_of(every: int, other: KVCacheSpec) -> dict[str, KVCacheSpec]:
    return {f"layer.{i}": other if i % every else FULL for i in range(LAYERS)}


MODELS: Final = {
    "full attention": _one_full_of(1, FULL),
    "Gemma 3": _one_full_of(6, _sliding(1024)),
    "gpt-oss": _one_full_of(2, _sliding(128)),
    "Llama 4": _one_full_of(
        4, ChunkedLocalAttentionSpec(**_ATTENTION, attention_chunk_size=ATTENTION_CHUNK)
    ),
    "hybrid": _one_full_of(4, _states(CTX_MAX, "none")),
    "hybrid, aligned states": _one_full_of(4, _states(BLOCK, "align")),
    "hybrid, all states": _one_full_of(4, _states(BLOCK, "all")),
}


class Core:
    """An engine core's cache for a model, and the engine client that reaches it.

    `batches`: that may be in flight at once, 2 with asynchronous scheduling.
    """

    def __init__(self, model: str, batches: int = 1, watermark: float = 0.0) -> None:
        specs = dict(MODELS[model])
        config = VllmConfig()
        config.cache_config.kv_cache_layout = "LBHNC"
        for spec in specs.values():
            if isinstance(spec, MambaSpec):
                config.cache_config.mamba_cache_mode = spec.mamba_cache_mode
        config.model_config = SimpleNamespace(
            max_model_len=CTX_MAX,
            hf_text_config=SimpleNamespace(attention_chunk_size=ATTENTION_CHUNK),
        )
        config.scheduler_config.max_num_batched_tokens = BATCH_TOKENS
        config.scheduler_config.async_scheduling = batches > 1
        config.scheduler_config.watermark = watermark
        register_all_kvcache_specs(config)
        groups = get_kv_cache_groups(config, specs)
        memory = FULL.page_size_bytes * LAYERS * 8000
        cache = generate_scheduler_kv_cache_config(
            [get_kv_cache_config_from_groups(config, groups, memory)]
        )
        config.cache_config.num_gpu_blocks = cache.num_blocks
        update_kv_cache_capacity(config, cache)
        self.vllm_config, self.engine_core = config, self
        self._in_flight = batches - 1
        self._manager = KVCacheManager(
            cache,
            CTX_MAX,
            *resolve_kv_cache_block_sizes(cache, config),
            max_in_flight_tokens=config.max_in_flight_tokens,
            enable_caching=False,
            watermark=watermark,
        )
        self.scheduler = SimpleNamespace(kv_cache_config=cache, kv_cache_manager=self._manager)

    async def call_utility_async(self, method: str) -> Any:
        """As `AsyncMPClient` has it called in the engine core."""
        return getattr(EngineCore, method)(self)

    @property
    def taken(self) -> int:
        """Blocks that are taken of the pool; one is vLLM's own."""
        pool = self._manager.block_pool
        return int(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())

    def most_taken(self, prompt: int, tokens: int) -> tuple[int, int]:
        """The most blocks of one sequence: while its prompt is in flight, and after that."""
        request = Request("one", [1] * prompt, SamplingParams(max_tokens=CTX_MAX), None)
        reading = self._compute(request, prompt)
        decoding = 0 if tokens > prompt else self.taken
        for step in range(tokens - prompt):
            request.append_output_token_ids(1)
            taken = self._compute(request, 1)
            if step < self._in_flight:
                reading = max(reading, taken)
            else:
                decoding = max(decoding, taken)
        self._manager.free(request)
        return reading, decoding

    def starts_beside(self, other: int, prompt: int) -> bool:
        """Whether a prompt is started while a sequence of `other` tokens runs."""
        running, waiting = (
            Request(str(tokens), [1] * tokens, SamplingParams(max_tokens=1), None)
            for tokens in (other, prompt)
        )
        self._compute(running, other)
        chunk = min(BATCH_TOKENS, prompt)
        blocks = self._manager.allocate_slots(waiting, chunk, full_sequence_must_fit=True)
        for each in (waiting, running):
            self._manager.free(each)
        return blocks is not None

    def _compute(self, request: Request, tokens: int) -> int:
        most = 0
        while tokens:
            chunk = min(BATCH_TOKENS, tokens)
            if self._manager.allocate_slots(request, chunk) is None:
                raise AssertionError(f"no block is left for {chunk} more tokens")
            most = max(most, self.taken)
            request.num_computed_tokens += chunk
            # What is in flight was computed before, but keeps the blocks below its window.
            request.num_in_flight_tokens = chunk * self._in_flight
            tokens -= chunk
        return most

"""Reads the conditions under which an engine runs from vLLM's final configuration.

Figures that were measured under different conditions are no figures of the same thing.

Pure: takes any object with the fields of `VllmConfig`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

NONE: Final = "none"
# The value of a condition that the engine does not report; it is never guessed.
UNKNOWN: Final = "unknown"

# vLLM's documentation of --kv-cache-dtype: `fp8` is the same as `fp8_e4m3`.
_SYNONYMS: Final = {"fp8": "fp8_e4m3"}


@dataclass(frozen=True, slots=True)
class Conditions:
    """`speculative`: `none`, or the method and its drafts per step, `ngram:3`. `quantization`: of
    the weights, `none` or vLLM's name of the method. `kv_cache_dtype`: `bfloat16`, `fp8_e4m3`.
    `prefix_caching`: `on` or `off`. `attention_backend`: vLLM's name of it, `FLASH_ATTN`; several,
    sorted and joined by `+`, where layers differ. `tensor_parallel`, `pipeline_parallel`: ranks.
    `data_parallel`: ranks that the model's experts are divided over and that step together, of
    which this engine is one; 1: it is the whole model.
    """

    speculative: str
    quantization: str
    kv_cache_dtype: str
    prefix_caching: str
    attention_backend: str
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int = 1


def conditions_of(vllm_config: Any) -> Conditions:
    """Returns the conditions of an engine with this configuration.

    The attention backend is unknown: each layer chooses its own when the model is loaded.
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel = vllm_config.parallel_config
    return Conditions(
        speculative=_speculative(vllm_config),
        quantization=str(model.quantization or NONE),
        kv_cache_dtype=kv_cache_dtype(vllm_config),
        prefix_caching="on" if cache.enable_prefix_caching else "off",
        attention_backend=UNKNOWN,
        tensor_parallel=int(parallel.tensor_parallel_size),
        pipeline_parallel=int(parallel.pipeline_parallel_size),
        data_parallel=int(parallel.data_parallel_size),
    )


def tokens_per_step_of(vllm_config: Any) -> int:
    """Returns the most tokens that a decode step generates per sequence: one and its drafts."""
    speculative = vllm_config.speculative_config
    return 1 if speculative is None else 1 + int(speculative.num_speculative_tokens or 0)


def attention_backend(ranks: Iterable[Iterable[str]]) -> str:
    """Returns the attention backend, from the names that each rank's layers use."""
    return "+".join(sorted({name for names in ranks for name in names})) or NONE


def kv_cache_dtype(vllm_config: Any) -> str:
    """Returns the data type of the KV cache, `bfloat16` for instance; `auto` is the model's."""
    cache_dtype = str(vllm_config.cache_config.cache_dtype)
    if cache_dtype == "auto":
        return str(vllm_config.model_config.dtype).removeprefix("torch.")
    return _SYNONYMS.get(cache_dtype, cache_dtype)


def _speculative(vllm_config: Any) -> str:
    speculative = vllm_config.speculative_config
    if speculative is None:
        return NONE
    return f"{speculative.method or UNKNOWN}:{tokens_per_step_of(vllm_config) - 1}"

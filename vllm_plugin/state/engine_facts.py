"""Reads what does not change while an engine runs from vLLM's final configuration.

Among it are the conditions under which it runs: figures that were measured under different
conditions are no figures of the same thing.

Pure: takes any object with the fields of `VllmConfig`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from vllm_plugin.contracts.senders import Unleased
from vllm_plugin.state.kv_cache import bytes_per_token

NONE: Final = "none"
EAGER: Final = "eager"
# The value of a condition that the engine does not report; it is never guessed.
UNKNOWN: Final = "unknown"

# vLLM's documentation of --kv-cache-dtype: `fp8` is the same as `fp8_e4m3`.
_SYNONYMS: Final = {"fp8": "fp8_e4m3"}

# Weights that vLLM draws at random; and a configuration that says so of those in its files.
DUMMY: Final = "dummy"
RANDOM: Final = "random"
RANDOM_WEIGHTS: Final = "orch_random_weights"
_DIGITS: Final = 16
_GIB: Final = 1 << 30
# Of a configuration, what does not change the model.
_NOT_THE_MODEL: Final = frozenset({"transformers_version"})


@dataclass(frozen=True, slots=True)
class Hardware:
    """`gpu`: the accelerator's name as its driver reports it; without one `CPU (<model>)`.

    `gpu_count`: accelerators that the engine has: one copy of the model is spread over them, or, of
    a rank of data parallelism, all but the experts of other ranks. 0 without one.
    `precision`: of the weights, `BF16` for instance, or the method of a quantized model.
    """

    gpu: str
    gpu_count: int
    precision: str


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is known of an engine when it starts.

    `models`: the names that it starts with. `weights`: the model as the engine loaded it, its id
    or path. `tokens_per_step`: of a sequence in a decode step, at most.
    """

    engine_version: str
    pool: str
    models: tuple[str, ...]
    weights: str
    ctx_max: int
    profile: str
    measurement_type: str
    batching: bool
    slots_total: int
    epoch: str
    features: dict[str, Any]
    hardware: Hardware
    conditions: Conditions
    tokens_per_step: int = 1
    rate_limits: dict[str, int] = field(default_factory=dict)  # vLLM's own, by option
    unleased: Unleased = Unleased.COUNT


@dataclass(frozen=True, slots=True)
class Conditions:
    """How an engine is configured. Each name is also that of a note of facts, and with `orch.`
    before it that of a span attribute.

    `speculative`: `none`, or the method and its drafts per step, `ngram:3`. `quantization`: of
    the weights, `none` or vLLM's name of the method. `kv_cache_dtype`: `bfloat16`, `fp8_e4m3`.
    `prefix_caching`: `on` or `off`. `attention_backend`: vLLM's name of it, `FLASH_ATTN`; several,
    sorted and joined by `+`, where layers differ. `tensor_parallel`, `pipeline_parallel`: ranks.
    `data_parallel`: ranks that the model's experts are divided over and that step together, of
    which this engine is one; 1: it is the whole model. `loaded`: the model as it was loaded, by
    `loaded_model`.

    The scheduler's: `max_num_batched_tokens` of a step, `long_prefill_token_threshold` (0: none),
    `async_scheduling`: `on` or `off`, `prefill_schedule_interval`: steps from one that takes new
    prompts to the next. `execution`: `eager`, or vLLM's modes of compilation and of CUDA graphs,
    `vllm_compile+full_and_piecewise`; what the attention backend makes of the latter follows from
    both. `kv_offload`: `none`, or the KV connector and, where it states it, its memory in GiB.
    `max_loras`: adapters in a batch; 0 without LoRA.
    """

    speculative: str
    quantization: str
    kv_cache_dtype: str
    prefix_caching: str
    attention_backend: str
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    async_scheduling: str
    prefill_schedule_interval: int
    execution: str
    kv_offload: str
    max_loras: int
    loaded: str = UNKNOWN


def features_of(vllm_config: Any) -> dict[str, Any]:
    """Returns further settings of the engine, as `features` of its state.

    `data_parallel_rank`: which of several ranks the engine is. `max_loras`: LoRA adapters of a
    batch, at most; missing without LoRA.
    """
    scheduler, model = vllm_config.scheduler_config, vllm_config.model_config
    parallel = vllm_config.parallel_config
    kv_bytes = bytes_per_token(model.hf_text_config, kv_cache_dtype(vllm_config))
    return {
        **({} if kv_bytes is None else {"kv_bytes_per_token": kv_bytes}),
        **(
            {"data_parallel_rank": int(parallel.data_parallel_rank)}
            if parallel.data_parallel_size > 1
            else {}
        ),
        **(
            {}
            if vllm_config.lora_config is None
            else {"max_loras": int(vllm_config.lora_config.max_loras)}
        ),
        "speculative_decoding": vllm_config.speculative_config is not None,
        "scheduling_policy": str(scheduler.policy),
        "max_num_batched_tokens": int(scheduler.max_num_batched_tokens),
        "long_prefill_token_threshold": int(scheduler.long_prefill_token_threshold),
        "evidence": True,  # statements are signed: vllm_plugin/contracts/statement.py
    }


def rate_limits_of(vllm_config: Any) -> dict[str, int]:
    """Returns the limits beyond which vLLM itself rejects requests, if any are configured."""
    scheduler = vllm_config.scheduler_config
    limits = {
        "max_num_queued_reqs": scheduler.max_num_queued_reqs,
        "max_num_queued_tokens": scheduler.max_num_queued_tokens,
    }
    return {name: int(limit) for name, limit in limits.items() if limit is not None}


def conditions_of(vllm_config: Any) -> Conditions:
    """Returns the conditions of an engine with this configuration.

    The attention backend is unknown: each layer chooses its own when the model is loaded. So is
    what was loaded.
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel, scheduler = vllm_config.parallel_config, vllm_config.scheduler_config
    lora = vllm_config.lora_config
    return Conditions(
        speculative=_speculative(vllm_config),
        quantization=str(model.quantization or NONE),
        kv_cache_dtype=kv_cache_dtype(vllm_config),
        prefix_caching=_on_off(cache.enable_prefix_caching),
        attention_backend=UNKNOWN,
        tensor_parallel=int(parallel.tensor_parallel_size),
        pipeline_parallel=int(parallel.pipeline_parallel_size),
        data_parallel=int(parallel.data_parallel_size),
        max_num_batched_tokens=int(scheduler.max_num_batched_tokens),
        long_prefill_token_threshold=int(scheduler.long_prefill_token_threshold),
        async_scheduling=_on_off(scheduler.async_scheduling),
        prefill_schedule_interval=int(scheduler.prefill_schedule_interval),
        execution=_execution(vllm_config),
        kv_offload=_kv_offload(vllm_config),
        max_loras=0 if lora is None else int(lora.max_loras),
    )


def tokens_per_step_of(vllm_config: Any) -> int:
    """Returns the most tokens that a decode step generates per sequence: one and its drafts."""
    speculative = vllm_config.speculative_config
    return 1 if speculative is None else 1 + int(speculative.num_speculative_tokens or 0)


def attention_backend(ranks: Iterable[Iterable[str]]) -> str:
    """Returns the attention backend, from the names that each rank's layers use."""
    return "+".join(sorted({name for names in ranks for name in names})) or NONE


def loaded_model(vllm_config: Any, ranks: Iterable[Sequence[int]]) -> str:
    """Returns what tells the model as it was loaded from any other: the first digits of the SHA-256
    of its configuration in effect (`--hf-overrides` included), its type, how its weights are
    quantized and were loaded, whether it takes LoRA adapters, and the number and bytes of its
    parameters on each rank. `dummy:` or `random:` before that: its weights mean nothing.

    `ranks`: the number and bytes of each.
    """
    model, load_format = vllm_config.model_config, str(vllm_config.load_config.load_format)
    effective = model.hf_config.to_dict()
    facts = {
        "config": {name: effective[name] for name in effective.keys() - _NOT_THE_MODEL},
        "dtype": str(model.dtype),
        "quantization": str(model.quantization or NONE),
        "load_format": load_format,
        "lora": vllm_config.lora_config is not None,
        "parameters": [list(each) for each in ranks],
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    digits = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    if load_format == DUMMY:
        return f"{DUMMY}:{digits}"
    return f"{RANDOM}:{digits}" if effective.get(RANDOM_WEIGHTS) else digits


def kv_cache_dtype(vllm_config: Any) -> str:
    """Returns the data type of the KV cache, `bfloat16` for instance; `auto` is the model's."""
    cache_dtype = str(vllm_config.cache_config.cache_dtype)
    if cache_dtype == "auto":
        return str(vllm_config.model_config.dtype).removeprefix("torch.")
    return _SYNONYMS.get(cache_dtype, cache_dtype)


def _on_off(value: Any) -> str:
    return "on" if value else "off"


def _execution(vllm_config: Any) -> str:
    compilation = vllm_config.compilation_config
    modes = (compilation.mode, compilation.cudagraph_mode)
    names = [mode.name.lower() for mode in modes if mode is not None]  # enums of vLLM
    return "+".join(name for name in names if name != NONE) or EAGER


def _kv_offload(vllm_config: Any) -> str:
    transfer = vllm_config.kv_transfer_config
    if transfer is None or transfer.kv_connector is None:
        return NONE
    size = (transfer.kv_connector_extra_config or {}).get("cpu_bytes_to_use")
    return f"{transfer.kv_connector}{'' if size is None else f':{float(size) / _GIB:g}'}"


def _speculative(vllm_config: Any) -> str:
    speculative = vllm_config.speculative_config
    if speculative is None:
        return NONE
    return f"{speculative.method or UNKNOWN}:{tokens_per_step_of(vllm_config) - 1}"

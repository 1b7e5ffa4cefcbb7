"""Keeps the facts that do not change while an engine runs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm_plugin.contracts.senders import Unleased
from vllm_plugin.state.conditions import Conditions, kv_cache_dtype
from vllm_plugin.state.kv_cache import bytes_per_token


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

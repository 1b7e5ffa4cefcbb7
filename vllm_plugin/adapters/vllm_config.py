"""Reads vLLM's configuration, and asks the engine core and its workers, in the plugin's terms."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

from vllm_plugin.contracts.kv_cache import KvCache, KvGroup
from vllm_plugin.contracts.profile import Profile
from vllm_plugin.enforcement import enforce, hooks
from vllm_plugin.enforcement.enforce import WORKER_EXTENSION
from vllm_plugin.state.engine_facts import (
    Conditions,
    EngineFacts,
    Hardware,
    attention_backend,
    conditions_of,
    features_of,
    loaded_model,
    rate_limits_of,
    tokens_per_step_of,
)
from vllm_plugin.state.engine_state import EngineState
from vllm_plugin.state.kv_cache import Scheduling, groups_of

logger = logging.getLogger("vllm.orch")

_CPUINFO: Final = Path("/proc/cpuinfo")

# As spec sheets and benchmarks write them.
_PRECISIONS: Final = {"bfloat16": "BF16", "float16": "FP16", "float32": "FP32"}

# Executors that run the model in the process of the engine core.
_IN_PROCESS: Final = ("uni", "external_launcher")


class StepTiming(Enum):
    """What vLLM's `elapsed_ms` of a step is the time of: its clock starts when the executor has
    been given the step."""

    WHOLE = "the whole step: the model runs in another process"
    WAIT = "the wait for a result that was asked for before, with asynchronous scheduling"
    REST = "what follows the model's call, which this process has made by then"


def step_timing_of(vllm_config: Any) -> StepTiming:
    """Returns what `elapsed_ms` is the time of in an engine with this configuration."""
    if vllm_config.scheduler_config.async_scheduling:
        return StepTiming.WAIT
    in_process = vllm_config.parallel_config.distributed_executor_backend in _IN_PROCESS
    return StepTiming.REST if in_process else StepTiming.WHOLE


def make_engine_state(vllm_config: Any, profile: Profile) -> EngineState:
    """Creates the state of the engine with this configuration, and labels its spans."""
    enforce.verify(vllm_config, profile)
    model = vllm_config.model_config
    served = model.served_model_name
    engine_state = EngineState(
        EngineFacts(
            engine_version=self_test(),
            pool=pool_of(os.environ, profile.name),
            models=tuple(served) if isinstance(served, list) else (served,),
            weights=str(model.model),
            ctx_max=model.max_model_len,
            profile=profile.name,
            measurement_type=profile.measurement_type.value,
            batching=profile.batching,
            slots_total=enforce.slots_of(vllm_config.scheduler_config),
            epoch=secrets.token_hex(8),
            features=features_of(vllm_config),
            rate_limits=rate_limits_of(vllm_config),
            hardware=hardware_of(vllm_config),
            conditions=conditions_of(vllm_config),
            tokens_per_step=tokens_per_step_of(vllm_config),
            unleased=profile.unleased,
        )
    )
    if vllm_config.observability_config.otlp_traces_endpoint is not None:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider

        from vllm_plugin.adapters.spans import (
            RequestSpanEncoder,
            RequestSpanLabeller,
            engine_labels,
        )

        provider = trace.get_tracer_provider()
        if not isinstance(provider, TracerProvider):
            raise RuntimeError(
                f"the tracer provider is {type(provider).__name__}, must be that of the "
                "OpenTelemetry SDK: remove what replaces it, or --otlp-traces-endpoint"
            )
        provider.add_span_processor(RequestSpanLabeller(engine_state))
        RequestSpanEncoder(lambda: engine_labels(engine_state)).install()
    return engine_state


def self_test() -> str:
    """Checks every hook in the running vLLM and returns its version.

    Raises RuntimeError if a hook is missing.
    """
    import vllm

    package = Path(vllm.__file__).parent
    text, complete = hooks.report(vllm.__version__, hooks.check(hooks.symbols_below(package)))
    if not complete:
        raise RuntimeError(
            f"{text}\norch does not support this vLLM; use a supported release, or unset "
            "ORCH_PROFILE to run without a profile"
        )
    logger.info("%s", text)
    return str(vllm.__version__)


def pool_of(environ: Mapping[str, str], profile: str) -> str:
    """Returns the name of the engine's pool: ORCH_POOL, else the profile's name.

    An empty variable counts as unset, as with ORCH_PROFILE: a sidecar rejects an empty name.
    """
    return environ.get("ORCH_POOL") or profile


def hardware_of(vllm_config: Any) -> Hardware:
    """Returns the hardware of the engine with this configuration. Initialises no device."""
    from vllm.platforms import current_platform

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    cpu = current_platform.is_cpu()
    return Hardware(
        gpu=f"CPU ({cpu_model()})" if cpu else str(current_platform.get_device_name()),
        gpu_count=0 if cpu else int(parallel.world_size),  # without other ranks'
        precision=precision(str(model.dtype), model.quantization),
    )


def precision(dtype: str, quantization: str | None) -> str:
    """Returns the name of a precision: BF16 for `torch.bfloat16`, FP8 if quantized to `fp8`."""
    if quantization is not None:
        return quantization.upper()
    name = dtype.removeprefix("torch.")
    return _PRECISIONS.get(name, name.upper())


def cpu_model(cpuinfo: Path = _CPUINFO) -> str:
    """Returns the processor's name as Linux reports it, `unknown` if it does not."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return " ".join(value.split())
    return "unknown"


def scheduling_of(vllm_config: Any) -> Scheduling:
    """Returns the settings that determine the KV cache blocks of a sequence."""
    cache, model = vllm_config.cache_config, vllm_config.model_config
    drafts, at_once = vllm_config.num_speculative_tokens, cache.kv_cache_max_concurrency
    return Scheduling(
        ctx_max=model.max_model_len,
        ctx_max_blocks=round(cache.num_gpu_blocks / at_once) if at_once else None,
        batches=vllm_config.max_concurrent_batches,
        batch_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
        draft_tokens=drafts,
        lookahead_tokens=vllm_config.num_lookahead_tokens,
        retained_tokens=max(0, vllm_config.num_prefill_lookahead_tokens - 1),
        mamba_mode=cache.mamba_cache_mode,
        mamba_extra=drafts,
        attention_chunk=getattr(model.hf_text_config, "attention_chunk_size", None),
    )


async def kv_cache_of(engine_client: Any) -> KvCache:
    """Returns the KV cache of the engine. Only the engine core knows its groups of layers.

    If the engine core fails to return them, full attention in all layers is assumed; the sidecar
    corrects that by the measured usage.
    """
    config = engine_client.vllm_config
    core, cache = engine_client.engine_core, config.cache_config
    try:
        rows = await core.call_utility_async("get_kv_cache_group_metadata")
        groups = groups_of(rows, scheduling_of(config))
    except Exception:
        # vLLM raises failures of the engine core as bare Exceptions: no narrower type fits.
        logger.warning(
            "orch: the groups of the KV cache are unknown; assuming full attention", exc_info=True
        )
        groups = (KvGroup(cache.block_size),)
    blocks = cache.num_gpu_blocks or 0
    kept = int(blocks * config.scheduler_config.watermark)
    return KvCache(max(0, blocks - 1), groups, kept)  # vLLM reserves one block as a placeholder


async def conditions_of_workers(engine_client: Any, conditions: Conditions) -> Conditions:
    """Completes the conditions of an engine with what its workers know: the attention backend, and
    what they loaded. `unknown` where they cannot be asked, because the operator gave another
    `--worker-extension-cls`, or fail to return it."""
    core, config = engine_client.engine_core, engine_client.vllm_config
    if not workers_have_our_calls(config):
        logger.warning(
            "orch: another worker extension is in use: attention_backend and loaded are unknown"
        )
        return conditions
    try:
        backends = await core.collective_rpc_async("orch_attention_backends")
        conditions = replace(conditions, attention_backend=attention_backend(backends))
        parameters = await core.collective_rpc_async("orch_parameters")
        return replace(conditions, loaded=loaded_model(config, parameters))
    except Exception:
        # vLLM raises failures of a worker as bare Exceptions: no narrower type fits.
        logger.warning("orch: what the workers run is unknown", exc_info=True)
        return conditions


def workers_have_our_calls(vllm_config: Any) -> bool:
    """Returns whether vLLM mixed `WorkerCalls` into its workers, as the profile configures it."""
    return bool(vllm_config.parallel_config.worker_extension_cls == WORKER_EXTENSION)

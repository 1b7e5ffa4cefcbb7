"""Lists every name of vLLM that this package uses, and checks that vLLM still has it.

The same check serves the running engine (sources of the installed package) and releases that
cannot run here (sources or symbols of their wheels). Names are as `symbols` writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from vllm_plugin.evidence_hooks import EVIDENCE_HOOKS
from vllm_plugin.hook import Hook as Hook
from vllm_plugin.symbols import Symbols

HOOKS: Final = (
    Hook("__init__.py", "", ("__version__",), "the version"),
    Hook("envs.py", "", ("VLLM_PLUGINS", "VLLM_USE_RUST_FRONTEND"), "entry points, enforcement"),
    Hook(
        "plugins/__init__.py",
        "",
        (
            "DEFAULT_PLUGINS_GROUP='vllm.general_plugins'",
            "STAT_LOGGER_PLUGINS_GROUP='vllm.stat_logger_plugins'",
            "ENDPOINT_PLUGINS_GROUP='vllm.endpoint_plugins'",
            "load_general_plugins",
            "load_endpoint_plugins",
        ),
        "entry points",
    ),
    Hook(
        "engine/arg_utils.py",
        "EngineArgs",
        (
            "max_num_seqs",
            "max_num_active_seqs",
            "max_num_batched_tokens",
            "max_model_len",
            "long_prefill_token_threshold",
            "scheduling_policy",
            "data_parallel_size",
            "pipeline_parallel_size",
            "enable_elastic_ep",
            "scheduler_cls",
            "kv_transfer_config",
            "kv_offloading_size",
            "kv_offloading_backend",
            "otlp_traces_endpoint",
            "enable_logging_iteration_details",
            "_api_process_count",
        ),
        "enforcement",
    ),
    Hook(
        "engine/arg_utils.py",
        "EngineArgs.create_engine_config",
        ("self", "usage_context", "headless"),
        "enforcement",
    ),
    Hook(
        "config/vllm.py",
        "VllmConfig",
        (
            "model_config",
            "cache_config",
            "scheduler_config",
            "parallel_config",
            "speculative_config",
            "observability_config",
            "kv_transfer_config",
            "max_concurrent_batches",
            "num_speculative_tokens",
            "num_lookahead_tokens",
            "num_prefill_lookahead_tokens",
        ),
        "the engine's configuration",
    ),
    Hook(
        "config/scheduler.py",
        "SchedulerConfig",
        (
            "max_num_seqs",
            "max_num_active_seqs",
            "max_num_batched_tokens",
            "long_prefill_token_threshold",
            "policy",
            "async_scheduling",
            "max_num_queued_reqs",
            "max_num_queued_tokens",
        ),
        "slots_total, features, step times, rate_limits",
    ),
    Hook(
        "config/parallel.py",
        "ParallelConfig",
        (
            "data_parallel_size",
            "pipeline_parallel_size",
            "world_size",
            "enable_elastic_ep",
            "node_rank_within_dp",
            "_api_process_count",
        ),
        "enforcement, gpu_count",
    ),
    Hook("entrypoints/cli/main.py", "", ("main",), "the start of a server"),
    Hook(
        "config/model.py",
        "ModelConfig",
        (
            "served_model_name",
            "max_model_len",
            "dtype",
            "quantization",
            "hf_text_config",
            "model",
            "revision",
        ),
        "models, ctx_max, precision, blocks of the KV cache, evidence",
    ),
    Hook(
        "config/cache.py",
        "CacheConfig",
        ("num_gpu_blocks", "block_size", "kv_cache_max_concurrency", "mamba_cache_mode"),
        "blocks of the KV cache",
    ),
    Hook(
        "config/kv_transfer.py",
        "KVTransferConfig",
        ("kv_connector", "kv_connector_module_path", "kv_connector_extra_config", "kv_role"),
        "enforcement",
    ),
    Hook("config/speculative.py", "SpeculativeConfig", ("num_speculative_tokens",), "step times"),
    Hook("config/observability.py", "ObservabilityConfig", ("otlp_traces_endpoint",), "labels"),
    Hook(
        "v1/metrics/loggers.py",
        "StatLoggerBase.record",
        ("self", "scheduler_stats", "iteration_stats", "mm_cache_stats", "engine_idx"),
        "scheduler state",
    ),
    Hook(
        "v1/metrics/loggers.py",
        "StatLoggerBase",
        ("record", "log_engine_initialized"),
        "scheduler state",
    ),
    Hook(
        "v1/metrics/stats.py",
        "SchedulerStats",
        (
            "num_running_reqs",
            "num_waiting_reqs",
            "num_skipped_waiting_reqs",
            "kv_cache_usage",
            "iteration_details",
        ),
        "scheduler state",
    ),
    Hook(
        "v1/metrics/stats.py",
        "SchedulerIterationDetails",
        (
            "num_ctx_requests",
            "num_ctx_tokens",
            "num_generation_requests",
            "num_generation_tokens",
            "elapsed_ms",
            "is_dummy",
        ),
        "batch sizes, step times",
    ),
    Hook(
        "v1/metrics/stats.py",
        "IterationStats",
        (
            "num_preempted_reqs",
            "num_generation_tokens",
            "inter_token_latencies_iter",
            "finished_requests",
            "iteration_timestamp",
        ),
        "preemptions, step times, evidence",
    ),
    *EVIDENCE_HOOKS,
    Hook(
        "plugins/endpoint_plugins/interface.py",
        "EndpointPlugin.attach_router",
        ("self", "app"),
        "/v1/capabilities",
    ),
    Hook(
        "plugins/endpoint_plugins/interface.py",
        "EndpointPlugin.init_state",
        ("self", "engine_client", "state", "args"),
        "/v1/capabilities",
    ),
    Hook("platforms/__init__.py", "", ("current_platform",), "hardware"),
    Hook(
        "v1/engine/async_llm.py",
        "AsyncLLM",
        ("vllm_config", "engine_core"),
        "blocks of the KV cache",
    ),
    Hook(
        "v1/engine/core_client.py",
        "AsyncMPClient",
        ("call_utility_async",),
        "blocks of the KV cache",
    ),
    Hook(
        "v1/engine/core.py",
        "EngineCore",
        ("get_kv_cache_group_metadata",),
        "blocks of the KV cache",
    ),
    Hook("platforms/interface.py", "Platform", ("is_cpu", "get_device_name"), "hardware"),
    Hook(
        "entrypoints/launchers/api_server/app_state.py",
        "init_app_state",
        ("state.openai_serving_models",),
        "models",
    ),
    Hook("entrypoints/openai/models/protocol.py", "BaseModelPath", ("name",), "models"),
    Hook(
        "entrypoints/openai/models/serving.py",
        "OpenAIServingModels",
        ("base_model_paths", "lora_requests"),
        "models",
    ),
    Hook(
        "engine/protocol.py",
        "EngineClient",
        ("is_running", "errored", "is_sleeping"),
        "end of the stream, pauses",
    ),
    Hook(
        "entrypoints/launchers/launcher.py",
        "serve_http",
        ("app.state.server",),
        "end of the stream",
    ),
    Hook(
        "tracing/utils.py",
        "SpanAttributes",
        (
            "GEN_AI_USAGE_PROMPT_TOKENS='gen_ai.usage.prompt_tokens'",
            "GEN_AI_USAGE_COMPLETION_TOKENS='gen_ai.usage.completion_tokens'",
            "GEN_AI_LATENCY_TIME_IN_MODEL_INFERENCE='gen_ai.latency.time_in_model_inference'",
            "GEN_AI_REQUEST_ID='gen_ai.request.id'",
        ),
        "span labels",
    ),
    Hook(
        "v1/engine/output_processor.py",
        "OutputProcessor.do_tracing",
        ("span_name='llm_request'",),
        "span labels",
    ),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A hook, and which of its names are missing; all of them if the place does not exist."""

    hook: Hook
    missing: tuple[str, ...]


def check(symbols_of: Callable[[str], Symbols | None]) -> list[Finding]:
    """Checks every hook. `symbols_of` returns a file's symbols, None if it does not exist."""
    findings = []
    for hook in HOOKS:
        names = (symbols_of(hook.file) or {}).get(hook.what)
        missing = hook.names if names is None else tuple(n for n in hook.names if n not in names)
        findings.append(Finding(hook, missing))
    return findings


def report(version: str, findings: list[Finding]) -> tuple[str, bool]:
    """Returns the text for the log, and whether every hook was found."""
    missing = [finding for finding in findings if finding.missing]
    lines = [f"orch: vLLM {version}: {len(findings) - len(missing)} of {len(findings)} hooks found"]
    for finding in findings:
        place = f"{finding.hook.file}:{finding.hook.what or '(module)'}"
        if finding.missing:
            lines.append(
                f"  MISSING {place}: {', '.join(finding.missing)} "
                f"(needed for {finding.hook.needed_for})"
            )
        else:
            lines.append(f"  found {place} ({finding.hook.needed_for})")
    return "\n".join(lines), not missing

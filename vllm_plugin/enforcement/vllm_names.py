"""Lists every name of vLLM that the plugin uses; `hooks` checks that a release has them.

Names are as `symbols` writes them. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Hook:
    """A place in vLLM: its file, class or function, the names it must have, what needs them."""

    file: str
    what: str
    names: tuple[str, ...]
    needed_for: str


HOOKS: Final = (
    Hook("__init__.py", "", ("__version__",), "the version"),
    Hook(
        "envs.py",
        "",
        ("VLLM_PLUGINS", "VLLM_USE_RUST_FRONTEND", "VLLM_API_KEY", "VLLM_DP_SIZE"),
        "settings",
    ),
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
            *("max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens", "max_model_len"),
            *("long_prefill_token_threshold", "scheduling_policy"),
            *("data_parallel_size", "data_parallel_rank", "data_parallel_start_rank"),
            *("data_parallel_external_lb", "data_parallel_hybrid_lb"),
            *("data_parallel_multi_port_external_lb", "data_parallel_backend"),
            "pipeline_parallel_size",
            "enable_elastic_ep",
            "scheduler_cls",
            "kv_transfer_config",
            "kv_offloading_size",
            "kv_offloading_backend",
            "otlp_traces_endpoint",
            "worker_extension_cls",
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
            "load_config",
            "kv_transfer_config",
            "lora_config",
            "compilation_config",
            "max_concurrent_batches",
            *("num_speculative_tokens", "num_lookahead_tokens", "num_prefill_lookahead_tokens"),
            "use_v2_model_runner",
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
            "prefill_schedule_interval",
            "max_num_queued_reqs",
            "max_num_queued_tokens",
            "watermark",
        ),
        "slots_total, features, step times, rate_limits, conditions, blocks of the KV cache",
    ),
    Hook(
        "config/parallel.py",
        "ParallelConfig",
        (
            *("data_parallel_size", "data_parallel_rank", "data_parallel_external_lb"),
            *("tensor_parallel_size", "pipeline_parallel_size"),
            *("world_size", "distributed_executor_backend"),
            "worker_extension_cls",
            "enable_elastic_ep",
            "node_rank_within_dp",
            "_api_process_count",
        ),
        "enforcement, gpu_count, conditions, step times",
    ),
    Hook("config/lora.py", "LoRAConfig", ("max_loras",), "features, conditions"),
    Hook("config/compilation.py", "CompilationConfig", ("mode", "cudagraph_mode"), "conditions"),
    Hook("entrypoints/cli/main.py", "", ("main",), "the start of a server"),
    Hook("entrypoints/cli/serve.py", "", ("cmd_init",), "the start of a server"),
    Hook(
        "config/model.py",
        "ModelConfig",
        (
            *("model", "revision", "served_model_name", "max_model_len"),
            *("dtype", "quantization", "hf_config", "hf_text_config"),
            *("enforce_eager", "get_vocab_size", "pooler_config"),
        ),
        "models, ctx_max, precision, blocks of the KV cache, conditions, evidence, warm-up",
    ),
    Hook(
        "config/cache.py",
        "CacheConfig",
        (
            "num_gpu_blocks",
            "block_size",
            "kv_cache_max_concurrency",
            "mamba_cache_mode",
            "cache_dtype",
            "enable_prefix_caching",
        ),
        "blocks of the KV cache, conditions",
    ),
    Hook("config/load.py", "LoadConfig", ("download_dir", "load_format"), "evidence"),
    Hook(
        "config/kv_transfer.py",
        "KVTransferConfig",
        ("kv_connector", "kv_connector_module_path", "kv_connector_extra_config", "kv_role"),
        "enforcement, conditions",
    ),
    Hook(
        "config/speculative.py",
        "SpeculativeConfig",
        ("method", "num_speculative_tokens"),
        "step times, conditions",
    ),
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
            "prefix_cache_stats",
            "connector_prefix_cache_stats",
            *("running_lora_adapters", "waiting_lora_adapters"),
        ),
        "scheduler state",
    ),
    Hook("v1/metrics/stats.py", "BaseCacheStats", ("queries", "hits"), "prefix cache"),
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
            *("inter_token_latencies_iter", "time_to_first_tokens_iter"),
            "finished_requests",
            "iteration_timestamp",
        ),
        "preemptions, step times, evidence",
    ),
    Hook(
        "v1/metrics/stats.py",
        "FinishedRequestStats",
        (
            *("request_id", "finish_reason", "e2e_latency", "queued_time", "prefill_time"),
            *("decode_time", "num_prompt_tokens", "num_generation_tokens", "num_cached_tokens"),
        ),
        "evidence",
    ),
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
        ("call_utility_async", "collective_rpc_async"),
        "blocks of the KV cache, conditions",
    ),
    Hook(
        "v1/engine/core.py",
        "EngineCore",
        ("get_kv_cache_group_metadata",),
        "blocks of the KV cache",
    ),
    Hook("config/vllm.py", "", ("get_layers_from_vllm_config",), "conditions"),
    Hook(
        "model_executor/layers/attention_layer_base.py",
        "AttentionLayerBase",
        ("get_attn_backend",),
        "conditions",
    ),
    Hook("v1/attention/backend.py", "AttentionBackend", ("get_name",), "conditions"),
    Hook(
        "v1/worker/worker_base.py",
        "WorkerBase",
        ("vllm_config", "device", "get_model"),
        "conditions",
    ),
    Hook("v1/sample/sampler.py", "Sampler", ("compute_logprobs", "gather_logprobs"), "warm-up"),
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
        "entrypoints/speech_to_text/base/serving.py",
        "",
        ("merge_async_iterators",),
        "one slot for a recording",
    ),
    Hook(
        "tracing/utils.py",
        "SpanAttributes",
        (
            "GEN_AI_USAGE_PROMPT_TOKENS='gen_ai.usage.prompt_tokens'",
            "GEN_AI_USAGE_COMPLETION_TOKENS='gen_ai.usage.completion_tokens'",
            "GEN_AI_LATENCY_TIME_TO_FIRST_TOKEN='gen_ai.latency.time_to_first_token'",
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

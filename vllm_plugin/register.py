"""Provides vLLM's entry points; the composition root of this package.

vLLM creates the plugin's parts itself, with zero-argument factories at different points of its
start, so what they share, the engine state, is in this module's `_process`: created by the stat
logger (the first to receive the final configuration), used by the endpoint and the spans.

Without ORCH_PROFILE everything here is inert. So vLLM may find the stat logger only with one: where
it finds any, it collects statistics, even with --disable-log-stats. Only the standard library is
imported at the top: vLLM merely logs an error while *importing* a plugin and continues without it,
but stops for an error inside the plugin's function.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import secrets
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_plugin.contracts.profile import Profile
    from vllm_plugin.evidence.chains import Evidence
    from vllm_plugin.state.conditions import Conditions
    from vllm_plugin.state.engine_state import EngineState
    from vllm_plugin.state.kv_cache import KvCache, Scheduling

_PROFILE_VARIABLE: Final = "ORCH_PROFILE"  # as in allowlist, which is not imported here
WARM_UP_VARIABLE: Final = "ORCH_WARM_UP"
# Of the start of an engine with CUDA graphs, the one whose operators pay for every second of it.
_WARM_UP_SHARE: Final = 0.1

logger = logging.getLogger("vllm.orch")


class _Process:
    """The state that the plugin's parts share within one process of the engine."""

    def __init__(self) -> None:
        self.profile: Profile | None = None
        self.engine_state: EngineState | None = None
        self.evidence: Evidence | None = None
        self.spans_labelled = False
        self.started_s = time.monotonic()  # vLLM imports this module as it reads its arguments


_process = _Process()


def general_plugin() -> None:
    """Applies the profile; runs in every process, before vLLM makes a configuration of arguments.

    Entry point of `vllm.general_plugins`. Raises ProfileError if the profile cannot be used.
    """
    selected = os.environ.get(_PROFILE_VARIABLE)
    if not selected or _process.profile is not None:
        return
    from vllm_plugin import allowlist
    from vllm_plugin.contracts.profile import load
    from vllm_plugin.enforcement import telemetry

    profile = load(selected)
    _process.profile = profile
    allowlist.ensure(os.environ)
    show_stat_logger()
    telemetry.label_resource(profile, os.environ)
    logging.getLogger("vllm.v1.metrics.loggers").addFilter(telemetry.IterationLineFilter())
    _wrap_create_engine_config(profile)
    _label_spans(profile)


def show_stat_logger() -> None:
    """Lets this process find the metadata with the entry point of `vllm.stat_logger_plugins`.

    vLLM looks for it when it creates its AsyncLLM, from arguments for which it ran all general
    plugins in the same process.
    """
    sys.path.append(str(Path(__file__).with_name("metadata")))


def _label_spans(profile: Profile) -> None:
    """Labels the spans of this process, as soon as it has a tracer provider."""
    if not _process.spans_labelled and "opentelemetry.sdk.trace" in sys.modules:
        from vllm_plugin.adapters import spans

        _process.spans_labelled = spans.label_process(profile)


def _wrap_create_engine_config(profile: Profile) -> None:
    """Enforces the profile in the one function that every way of creating an engine calls.

    A wrapper, because this is the last place where the operator's values can be distinguished
    from vLLM's, it serves the API server and `vllm.LLM` alike, and an exception here stops the
    process before any weight is read. vLLM 0.32 and 0.33 offer no hook for that. It can be removed
    when vLLM lets a general plugin inspect or reject `EngineArgs`.
    """
    from vllm.engine.arg_utils import EngineArgs

    from vllm_plugin.contracts.sidecar_key import SidecarKeys
    from vllm_plugin.enforcement import enforce
    from vllm_plugin.evidence import epoch_key

    original = EngineArgs.create_engine_config
    signature = inspect.signature(original)

    @functools.wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        enforce.apply(self, profile, os.environ, sys.argv)
        SidecarKeys(os.environ)  # an unusable key stops the engine here
        epoch_key.operator_key_file(os.environ)  # and so does this one
        warms_up(os.environ)  # and this one
        config = original(self, *args, **kwargs)
        given = signature.bind(self, *args, **kwargs).arguments
        enforce.verify(config, profile, headless=bool(given.get("headless")))
        logger.info(
            "orch: profile %s (%s): %d slots",
            profile.name,
            profile.measurement_type,
            enforce.slots_of(config.scheduler_config),
        )
        return config

    EngineArgs.create_engine_config = create_engine_config


def _self_test() -> str:
    """Checks every hook in the running vLLM and returns its version.

    Raises RuntimeError if a hook is missing.
    """
    import vllm

    from vllm_plugin.compatibility import hooks
    from vllm_plugin.compatibility.symbols import symbols_below

    package = Path(vllm.__file__).parent
    text, complete = hooks.report(vllm.__version__, hooks.check(symbols_below(package)))
    if not complete:
        raise RuntimeError(
            f"{text}\norch does not support this vLLM; use a supported release, or unset "
            f"{_PROFILE_VARIABLE} to run without a profile"
        )
    logger.info("%s", text)
    return str(vllm.__version__)


def pool_of(environ: Mapping[str, str], profile: str) -> str:
    """Returns the name of the engine's pool: ORCH_POOL, else the profile's name.

    An empty variable counts as unset, as with ORCH_PROFILE: a sidecar rejects an empty name.
    """
    return environ.get("ORCH_POOL") or profile


def scheduling_of(vllm_config: Any) -> Scheduling:
    """Returns the settings that determine the KV cache blocks of a sequence."""
    from vllm_plugin.state.kv_cache import Scheduling

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
    from vllm_plugin.state.kv_cache import KvCache, KvGroup, groups_of

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
    # vLLM reserves one block as a placeholder.
    return KvCache(max(0, (cache.num_gpu_blocks or 0) - 1), groups)


async def conditions_of_workers(engine_client: Any, conditions: Conditions) -> Conditions:
    """Completes the conditions of an engine with what its workers know: the attention backend, and
    what they loaded. `unknown` where they cannot be asked, because the operator gave another
    `--worker-extension-cls`, or fail to return it."""
    from vllm_plugin.state.conditions import attention_backend, loaded_model

    core, config = engine_client.engine_core, engine_client.vllm_config
    if not _workers_have_our_calls(config):
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


def _workers_have_our_calls(vllm_config: Any) -> bool:
    from vllm_plugin.enforcement.enforce import WORKER_EXTENSION

    return bool(vllm_config.parallel_config.worker_extension_cls == WORKER_EXTENSION)


def warms_up(environ: Mapping[str, str]) -> bool:
    """Returns whether engines warm up: unless ORCH_WARM_UP is `off`. An empty variable counts as
    unset. Raises ValueError."""
    value = environ.get(WARM_UP_VARIABLE) or "on"
    if value not in ("on", "off"):
        raise ValueError(f"{WARM_UP_VARIABLE} is {value!r}, must be on or off")
    return value == "on"


async def warm_up(engine_client: Any) -> None:
    """Compiles in the workers what vLLM would compile at a request, while all others wait.

    No sequence enters the engine for that: there is none to keep out of statistics, spans,
    statements and the prefix cache, vLLM's own among them. A failure stops no engine.
    """
    config = engine_client.vllm_config
    if config.use_v2_model_runner:
        return  # vLLM runs all of its sampler itself, before it captures graphs
    if not warms_up(os.environ):
        logger.info("orch: no warm-up: %s is off", WARM_UP_VARIABLE)
        return
    if not _workers_have_our_calls(config):
        logger.warning("orch: no warm-up: another worker extension is in use")
        return
    from vllm.platforms import current_platform

    limit_s = None
    if not (config.model_config.enforce_eager or current_platform.is_cpu()):
        limit_s = _WARM_UP_SHARE * (time.monotonic() - _process.started_s)
    logger.info("orch: warming up: compiling what requests with logprobs use")
    try:
        async with asyncio.timeout(limit_s):
            await engine_client.engine_core.collective_rpc_async("orch_warm_up")
    except TimeoutError:
        logger.warning(
            "orch: the warm-up takes longer than %.1f s, a tenth of the start: the engine serves "
            "now, and its first requests wait for the rest",
            limit_s,
        )
    except Exception:
        # vLLM raises failures of a worker as bare Exceptions: no narrower type fits.
        logger.warning(
            "orch: the warm-up failed: the first request with logprobs compiles", exc_info=True
        )


def make_engine_state(vllm_config: Any, profile: Profile) -> EngineState:
    """Creates the state of the engine with this configuration, and labels its spans."""
    from vllm_plugin.adapters.hardware import hardware_of
    from vllm_plugin.enforcement import enforce
    from vllm_plugin.state.conditions import conditions_of, tokens_per_step_of
    from vllm_plugin.state.engine_facts import EngineFacts, features_of, rate_limits_of
    from vllm_plugin.state.engine_state import EngineState

    enforce.verify(vllm_config, profile)
    model = vllm_config.model_config
    served = model.served_model_name
    engine_state = EngineState(
        EngineFacts(
            engine_version=_self_test(),
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

        from vllm_plugin.adapters.spans import RequestSpanLabeller

        provider = trace.get_tracer_provider()
        if not isinstance(provider, TracerProvider):
            raise RuntimeError(
                f"the tracer provider is {type(provider).__name__}, must be that of the "
                "OpenTelemetry SDK: remove what replaces it, or --otlp-traces-endpoint"
            )
        provider.add_span_processor(RequestSpanLabeller(engine_state))
    return engine_state


def __getattr__(name: str) -> Any:
    """Creates `StatLogger` on demand: it derives from a class of vLLM, and this module must be
    importable without vLLM (after an import error the engine would run without the plugin)."""
    if name != "StatLogger":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm_plugin.adapters.stat_logger import SchedulerStatLogger
    from vllm_plugin.evidence.setup import make_evidence
    from vllm_plugin.state.conditions import tokens_per_step_of

    assert _process.profile is not None  # or vLLM could not find it
    profile: Profile = _process.profile
    # vLLM has just created the provider of this process, and opens its first spans after this.
    _label_spans(profile)

    class StatLogger(SchedulerStatLogger):
        """The entry point of `vllm.stat_logger_plugins`; vLLM passes the final configuration."""

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            _process.engine_state = make_engine_state(vllm_config, profile)
            _process.evidence = make_evidence(vllm_config, _process.engine_state)
            super().__init__(
                _process.engine_state,
                bool(vllm_config.scheduler_config.async_scheduling),
                tokens_per_sequence=tokens_per_step_of(vllm_config),
                finished=_process.evidence.finished.add,
            )

    globals()[name] = StatLogger
    return StatLogger


def endpoint_plugin() -> Any:
    """Creates the endpoint plugin. Entry point of `vllm.endpoint_plugins`."""
    from vllm_plugin.endpoint import CapabilitiesEndpoint

    return CapabilitiesEndpoint(
        lambda: _process.engine_state,
        kv_cache_of,
        conditions_of_workers,
        warm_up,
        lambda: _process.evidence,
    )

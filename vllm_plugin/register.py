"""vLLM's entry points, and the composition root of this package.

vLLM builds the plugin's parts itself, from zero-argument factories and in different places of
its start, so the one thing they share, the board, lives in this module's `_process`: made by
the stat logger (the first to know the final configuration), used by endpoint and spans.

Without ORCH_PROFILE everything here is inert. At the top only the standard library is imported:
vLLM merely logs an error while *importing* a plugin and goes on without it, but stops for one
inside the plugin's function.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_plugin.board import Board
    from vllm_plugin.kv_cache import KvCache, Scheduling
    from vllm_plugin.profile import Profile

_PROFILE_VARIABLE: Final = "ORCH_PROFILE"  # as in allowlist, which is not imported here

logger = logging.getLogger("vllm.orch")


class _Process:
    """What the plugin's parts share within one process of the engine."""

    def __init__(self) -> None:
        self.profile: Profile | None = None
        self.board: Board | None = None
        self.labelled = False  # its spans


_process = _Process()


def general_plugin() -> None:
    """`vllm.general_plugins`: runs in every process, before engine arguments become a config."""
    selected = os.environ.get(_PROFILE_VARIABLE)
    if not selected or _process.profile is not None:
        return
    from vllm_plugin import allowlist, enforce
    from vllm_plugin.profile import load

    profile = load(selected)
    _process.profile = profile
    allowlist.ensure(os.environ)
    enforce.label_resource(profile, os.environ)
    logging.getLogger("vllm.v1.metrics.loggers").addFilter(enforce.NoIterationLines())
    _wrap_create_engine_config(profile)
    _label_spans(profile)


def _label_spans(profile: Profile) -> None:
    """Labels the spans of this process, as soon as it has a tracer provider."""
    if not _process.labelled and "opentelemetry.sdk.trace" in sys.modules:
        from vllm_plugin import spans

        _process.labelled = spans.label_process(profile)


def _wrap_create_engine_config(profile: Profile) -> None:
    """Enforces the profile where every way of making an engine passes through.

    Why a wrap: it is the last place where what the operator gave can be told from what vLLM
    chose, it serves the API server and `vllm.LLM` alike, and an exception here stops the
    process before any weight is read. vLLM 0.32 and 0.33 offer no hook for that. It can go
    when vLLM lets a general plugin see or veto `EngineArgs`.
    """
    from vllm.engine.arg_utils import EngineArgs

    from vllm_plugin import enforce

    original = EngineArgs.create_engine_config
    signature = inspect.signature(original)

    @functools.wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        enforce.apply(self, profile, os.environ, sys.argv)
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
    """Looks for every hook in the running vLLM. Returns its version; raises if one is missing."""
    import vllm

    from vllm_plugin import hooks
    from vllm_plugin.outline import outlines_below

    package = Path(vllm.__file__).parent
    text, complete = hooks.report(vllm.__version__, hooks.check(outlines_below(package)))
    if not complete:
        raise RuntimeError(
            f"{text}\norch cannot vouch for this vLLM; use a supported release, or unset "
            f"{_PROFILE_VARIABLE} to run without a profile"
        )
    logger.info("%s", text)
    return str(vllm.__version__)


def pool_of(environ: Mapping[str, str], profile: str) -> str:
    """The name of the engine's pool: that in ORCH_POOL, else that of the profile.

    An empty variable is none, as with ORCH_PROFILE: a sidecar refuses a report without a name.
    """
    return environ.get("ORCH_POOL") or profile


def features_of(vllm_config: Any) -> dict[str, Any]:
    """What else a sidecar may want to know of how this engine was configured."""
    scheduler = vllm_config.scheduler_config
    return {
        "speculative_decoding": vllm_config.speculative_config is not None,
        "scheduling_policy": str(scheduler.policy),
        "max_num_batched_tokens": int(scheduler.max_num_batched_tokens),
        "long_prefill_token_threshold": int(scheduler.long_prefill_token_threshold),
    }


def rate_limits_of(vllm_config: Any) -> dict[str, int]:
    """What vLLM itself turns away beyond, where its options say so."""
    scheduler = vllm_config.scheduler_config
    limits = {
        "max_num_queued_reqs": scheduler.max_num_queued_reqs,
        "max_num_queued_tokens": scheduler.max_num_queued_tokens,
    }
    return {name: int(limit) for name, limit in limits.items() if limit is not None}


def scheduling_of(vllm_config: Any) -> Scheduling:
    """What decides how many blocks of the KV cache a sequence holds."""
    from vllm_plugin.kv_cache import Scheduling

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
    """The KV cache of the engine. Its groups of layers are known in the engine core only.

    An engine core that does not answer for its groups counts as one with full attention in all
    layers; the sidecar corrects that by the measured usage.
    """
    from vllm_plugin.kv_cache import KvCache, KvGroup, groups_of

    config = engine_client.vllm_config
    core, cache = engine_client.engine_core, config.cache_config
    try:
        rows = await core.call_utility_async("get_kv_cache_group_metadata")
        groups = groups_of(rows, scheduling_of(config))
    except Exception:
        # Of a kind that vLLM chooses: what a call in the engine core raises comes as Exception.
        logger.warning("orch: the groups of the KV cache are unknown", exc_info=True)
        groups = (KvGroup(cache.block_size),)
    # One block is vLLM's own: it stands for no block.
    return KvCache(max(0, (cache.num_gpu_blocks or 0) - 1), groups)


def make_board(vllm_config: Any, profile: Profile) -> Board:
    """The board of the engine with this configuration, and the labels on its spans."""
    from vllm_plugin import enforce
    from vllm_plugin.board import Board, EngineFacts
    from vllm_plugin.hardware import hardware_of

    enforce.verify(vllm_config, profile)
    model = vllm_config.model_config
    served = model.served_model_name
    board = Board(
        EngineFacts(
            engine_version=_self_test(),
            pool=pool_of(os.environ, profile.name),
            models=tuple(served) if isinstance(served, list) else (served,),
            ctx_max=model.max_model_len,
            profile=profile.name,
            measurement_type=profile.measurement_type.value,
            batching=profile.batching,
            slots_total=enforce.slots_of(vllm_config.scheduler_config),
            epoch=secrets.token_hex(8),
            features=features_of(vllm_config),
            rate_limits=rate_limits_of(vllm_config),
            hardware=hardware_of(vllm_config),
        )
    )
    if vllm_config.observability_config.otlp_traces_endpoint is not None:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider

        from vllm_plugin.spans import LabelRequests

        provider = trace.get_tracer_provider()
        if not isinstance(provider, TracerProvider):
            raise RuntimeError("vLLM traces, but its tracer provider is not the SDK's")
        provider.add_span_processor(LabelRequests(board))
    return board


def __getattr__(name: str) -> Any:
    """`StatLogger` is made on demand: it derives from a class of vLLM, and this module must be
    importable without one (an import error would leave the engine running without us)."""
    if name != "StatLogger":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm_plugin.stat_logger import BoardStatLogger

    if _process.profile is not None:
        # vLLM has just made the provider of this process, and opens its first spans after this.
        _label_spans(_process.profile)

    class StatLogger(BoardStatLogger):
        """`vllm.stat_logger_plugins`: vLLM builds it with the final configuration."""

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            if _process.profile is not None:
                _process.board = make_board(vllm_config, _process.profile)
            drafts = getattr(vllm_config.speculative_config, "num_speculative_tokens", None) or 0
            super().__init__(
                _process.board,
                bool(vllm_config.scheduler_config.async_scheduling),
                tokens_per_sequence=1 + drafts,
            )

    globals()[name] = StatLogger
    return StatLogger


def endpoint_plugin() -> Any:
    """`vllm.endpoint_plugins`."""
    from vllm_plugin.endpoint import CapabilitiesEndpoint

    return CapabilitiesEndpoint(lambda: _process.board, kv_cache_of)

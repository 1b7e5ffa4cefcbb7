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
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_plugin.contracts.profile import Profile
    from vllm_plugin.evidence.chains import Evidence
    from vllm_plugin.state.engine_state import EngineState

_PROFILE_VARIABLE: Final = "ORCH_PROFILE"  # as in allowlist, which is not imported here
WARM_UP_VARIABLE: Final = "ORCH_WARM_UP"
# Of the start of an engine with CUDA graphs, the one whose operators pay for every second of it.
_WARM_UP_SHARE: Final = 0.1
_LOOK_EVERY_S: Final = 1.0

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
    end_with_parent()


def end_with_parent() -> None:
    """Has a process that another one of the engine started end with it, as at SIGTERM.

    vLLM's API server stops its engine core, but where it is killed itself, the core would run on
    without anybody, and keep its memory: vLLM watches its workers alone.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_S)
        os.kill(os.getpid(), signal.SIGTERM)

    if multiprocessing.parent_process() is not None:
        threading.Thread(target=watch, name="orch-parent", daemon=True).start()


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

    from vllm_plugin.contracts.senders import SidecarKeys
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
    from vllm_plugin.adapters.vllm_config import workers_have_our_calls

    if not workers_have_our_calls(config):
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


def make_evidence(vllm_config: Any, engine_state: EngineState) -> Evidence:
    """Creates the evidence of an engine.

    With an operator's key, the key of the epoch is made and certified now, without one for the
    first statement. Raises InvalidOperatorKey.
    """

    from vllm_plugin.contracts.lease_protocol import timestamp
    from vllm_plugin.evidence.chains import Evidence
    from vllm_plugin.evidence.digests import Digests
    from vllm_plugin.evidence.epoch_key import make_epoch_key, operator_key_file

    def document(at_s: float) -> dict[str, Any]:
        observed = {"observed_at": timestamp(at_s), "age_ms": 0}
        return engine_state.document(None, at_s) | observed

    model, epoch = vllm_config.model_config, engine_state.facts.epoch
    digests = Digests(str(model.model), model.revision, vllm_config.load_config.download_dir)
    digests.start()
    operator_key = operator_key_file(os.environ)
    evidence = Evidence(
        epoch,
        document,
        digests.document,
        lambda: make_epoch_key(epoch, operator_key, time.time()),
    )
    if operator_key is not None:
        logger.info("orch: statements are signed with the key %s", evidence.key.id)
    return evidence


def __getattr__(name: str) -> Any:
    """Creates `StatLogger` on demand: it derives from a class of vLLM, and this module must be
    importable without vLLM (after an import error the engine would run without the plugin)."""
    if name != "StatLogger":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm_plugin.adapters.stat_logger import SchedulerStatLogger
    from vllm_plugin.adapters.vllm_config import make_engine_state, step_timing_of
    from vllm_plugin.state.engine_facts import tokens_per_step_of

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
                step_timing_of(vllm_config),
                tokens_per_sequence=tokens_per_step_of(vllm_config),
                finished=_process.evidence.finished.add,
            )

    globals()[name] = StatLogger
    return StatLogger


def endpoint_plugin() -> Any:
    """Creates the endpoint plugin. Entry point of `vllm.endpoint_plugins`."""
    from vllm_plugin.adapters.vllm_config import conditions_of_workers, kv_cache_of
    from vllm_plugin.endpoint import CapabilitiesEndpoint

    return CapabilitiesEndpoint(
        lambda: _process.engine_state,
        kv_cache_of,
        conditions_of_workers,
        warm_up,
        lambda: _process.evidence,
    )

"""Applies a profile to vLLM's engine arguments, or rejects them.

Arguments that the operator did not give are set from the profile. All contradictions are listed
in one error, raised before any weight is read; nothing is clamped. The functions take any object
with the fields of `EngineArgs`, so they can be tested without vLLM; `register` wraps the real one.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

from vllm_plugin.contracts import senders
from vllm_plugin.contracts.profile import SLOTS_ARGUMENT, Profile
from vllm_plugin.contracts.senders import EngineKeys, Unleased
from vllm_plugin.contracts.vllm_arguments import contradiction, option, value_of
from vllm_plugin.enforcement import sharing, telemetry

# By it the engine's workers can be asked for their attention backends.
WORKER_EXTENSION: Final = "vllm_plugin.adapters.worker_extension.WorkerCalls"

# With several pipeline stages vLLM keeps a micro-batch in each and reports each as a step, so the
# reported size is not that of the batch, nor the time between reports that of a token. With one
# sequence there is one micro-batch, and the reports are correct.
_NO_STAGES: Final = (
    "must be 1 where sequences are batched: the engine reports each stage's micro-batch as a "
    "step, so batch sizes and times per token would be wrong by the number of stages; use "
    "--tensor-parallel-size instead"
)


class ProfileContradiction(ValueError):
    """The engine's arguments contradict its profile; the message lists all contradictions."""


def _contradiction(subject: str, profile: Profile, found: Sequence[str]) -> ProfileContradiction:
    return ProfileContradiction(
        f"{subject} contradict profile {profile.name!r} ({profile.measurement_type}): "
        f"{'; '.join(found)}. Change them, or select another profile by ORCH_PROFILE"
    )


def contradictions(
    args: Any, profile: Profile, environ: Mapping[str, str], argv: Sequence[str]
) -> list[str]:
    """Returns all that contradicts the profile in the engine's arguments and environment."""
    return [
        *_broken_rules(args, profile, argv),
        *_incompatible(args, profile, argv),
        *_unsupported(args, profile, environ, argv),
    ]


def _broken_rules(args: Any, profile: Profile, argv: Sequence[str]) -> list[str]:
    """Returns the arguments that break a rule of the profile."""
    found: list[str | None] = []
    for name, rule in profile.engine.items():
        if not hasattr(args, name):
            found.append(
                f"{option(name)} is in the profile, but this vLLM has no such argument: remove it"
            )
            continue
        if _is_given(args, name, argv):
            found.append(contradiction(name, getattr(args, name), rule))
    active = args.max_num_active_seqs
    if active is not None:
        found.append(contradiction("max_num_active_seqs", active, profile.slots))
    return [text for text in found if text is not None]


def _unsupported(
    args: Any, profile: Profile, environ: Mapping[str, str], argv: Sequence[str]
) -> list[str]:
    """Returns the settings with which slots could not be enforced or reported."""
    found = sharing.rank_contradictions(args, environ, argv, batching=profile.batching)
    servers = max(
        args._api_process_count,
        _as_int(value_of(argv, "--api-server-count", "-asc")),
    )
    if servers > 1:
        found.append(
            f"--api-server-count is {servers!r}, must be 1: the scheduler reports to only one "
            "API server"
        )
    if args.enable_elastic_ep:
        found.append(
            "--enable-elastic-ep is given, must not be: scaling replaces the plugin's statistics "
            "logger, so the engine's state would be unknown"
        )
    if profile.batching and args.pipeline_parallel_size > 1:
        found.append(f"--pipeline-parallel-size is {args.pipeline_parallel_size!r}, {_NO_STAGES}")
    if args.kv_transfer_config is not None and (
        objection := sharing.connector_objection(args.kv_transfer_config)
    ):
        found.append(f"--kv-transfer-config {objection}")
    if (
        args.kv_offloading_size is not None
        and args.kv_offloading_backend not in sharing.OFFLOADING_BACKENDS
    ):
        found.append(
            f"--kv-offloading-backend is {args.kv_offloading_backend!r}, must be one of "
            f"{', '.join(sorted(sharing.OFFLOADING_BACKENDS))}"
        )
    if profile.unleased is Unleased.REFUSE and _serves(argv) and "--config" not in argv:
        # With a configuration file the server's arguments are known when it starts to listen.
        given = (value_of(argv, "--api-key"), environ.get("VLLM_API_KEY"))
        host, uds = value_of(argv, "--host"), value_of(argv, "--uds")
        if text := senders.objection(host, uds, EngineKeys(filter(None, given))):
            found.append(text)
    if args.scheduler_cls is not None:
        found.append(
            "--scheduler-cls is given, must not be: slots are enforced by vLLM's scheduler"
        )
    if any(word.partition("=")[0] == "--grpc" for word in argv):
        found.append("--grpc is given, must not be: the plugin's endpoints are served over HTTP")
    if _as_int(environ.get("VLLM_USE_RUST_FRONTEND")):
        found.append(
            f"VLLM_USE_RUST_FRONTEND is {environ['VLLM_USE_RUST_FRONTEND']!r}, must not be set: "
            "that frontend loads no plugins, so the engine's state would be unknown"
        )
    return found


def _serves(argv: Sequence[str]) -> bool:
    """Returns whether this process serves HTTP; `vllm.LLM` does not."""
    return "serve" in argv[1:2] or "api_server" in "".join(argv[:1])


def _incompatible(args: Any, profile: Profile, argv: Sequence[str]) -> list[str]:
    """Returns the arguments set by the profile that are incompatible with the operator's.

    vLLM would reject them too, but later, and without naming the profile. Values that are not
    known yet (a context length that the model determines) are left to vLLM.
    """
    found: list[str] = []
    for name, bound, least in (
        ("max_num_batched_tokens", SLOTS_ARGUMENT, True),
        ("long_prefill_token_threshold", "max_model_len", False),
    ):
        if name not in profile.engine or not hasattr(args, name):
            continue
        value = _effective(args, profile, name, argv)
        limit = _effective(args, profile, bound, argv)
        if not isinstance(value, int) or not isinstance(limit, int) or limit <= 0:
            continue  # not known yet, or rejected for its type
        if value < limit if least else value > limit:
            origin = "" if _is_given(args, name, argv) else f" (by profile {profile.name!r})"
            found.append(
                f"{option(name)} is {value!r}{origin}, must be at {'least' if least else 'most'} "
                f"{option(bound)}, which is {limit!r}"
            )
    return found


def _effective(args: Any, profile: Profile, name: str, argv: Sequence[str]) -> Any:
    """Returns an argument as given, else from the profile, else vLLM's default."""
    if name in profile.engine and not _is_given(args, name, argv):
        return profile.engine[name].value
    return getattr(args, name)


def _is_given(args: Any, name: str, argv: Sequence[str]) -> bool:
    """Returns whether the operator gave an argument.

    An explicit value that equals vLLM's default is recognised on the command line only.
    """
    at_default = bool(getattr(args, name) == getattr(type(args), name, None))
    return not at_default or value_of(argv, option(name)) is not None


def _as_int(text: str | None) -> int:
    try:
        return int(text or "0")
    except ValueError:
        return 0  # vLLM's parser rejects it, with its own message


def apply(
    args: Any, profile: Profile, environ: MutableMapping[str, str], argv: Sequence[str]
) -> None:
    """Sets the arguments that were not given. Raises ProfileContradiction if any contradicts."""
    found = contradictions(args, profile, environ, argv)
    if found:
        raise _contradiction("these settings", profile, found)
    for name, rule in profile.engine.items():
        if not _is_given(args, name, argv):
            setattr(args, name, rule.value)
    if not args.worker_extension_cls:
        args.worker_extension_cls = WORKER_EXTENSION
    if args.otlp_traces_endpoint is None:
        args.otlp_traces_endpoint = telemetry.traces_endpoint(environ)
    if args.otlp_traces_endpoint is not None:
        environ[telemetry.TRACES_PROTOCOL] = telemetry.traces_protocol(
            environ, args.otlp_traces_endpoint
        )


def verify(config: Any, profile: Profile, *, headless: bool = False) -> None:
    """Checks vLLM's final configuration, which also depends on the environment (VLLM_DP_SIZE).

    `headless`: the process has no API server. That is allowed on further nodes of an engine, not
    on the first, because its scheduler reports to its API server. Raises ProfileContradiction.
    """
    parallel = config.parallel_config
    found = []
    slots = slots_of(config.scheduler_config)
    if objection := profile.slots.objection(slots):
        found.append(f"the engine would have {slots} slots: {SLOTS_ARGUMENT} {objection}")
    if text := sharing.rank_contradiction(parallel, batching=profile.batching):
        found.append(text)
    if parallel._api_process_count > 1:
        found.append(f"there would be {parallel._api_process_count} API servers, must be 1")
    if parallel.enable_elastic_ep:
        found.append("enable_elastic_ep is set, must not be")
    if profile.batching and parallel.pipeline_parallel_size > 1:
        found.append(f"pipeline_parallel_size is {parallel.pipeline_parallel_size}, {_NO_STAGES}")
    transfer = config.kv_transfer_config
    if transfer is not None and (objection := sharing.connector_objection(transfer)):
        found.append(f"kv_transfer_config {objection}")
    pooler = config.model_config.pooler_config
    if pooler is not None and pooler.enable_chunked_processing:
        found.append(
            "enable_chunked_processing of the pooler is set, must not be: it makes several "
            "sequences of one input, which no request says"
        )
    if headless and not parallel.node_rank_within_dp:
        found.append(
            "--headless is given, must not be on the first node of an engine: without an API "
            "server the engine's state would be unknown"
        )
    if found:
        raise _contradiction("settings in vLLM's configuration", profile, found)


def slots_of(scheduler_config: Any) -> int:
    """Returns the number of sequences that the engine runs at once."""
    return int(scheduler_config.max_num_active_seqs or scheduler_config.max_num_seqs)

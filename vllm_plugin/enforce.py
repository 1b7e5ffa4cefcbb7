"""Applies a profile to vLLM's engine arguments, or refuses them.

An argument that the operator did not give is set from the profile. One that contradicts it is
an entry in a list; the list is raised as one error before any weight is read. Nothing is
clamped. The functions here see any object with the fields of `EngineArgs`, so they can be
tested without vLLM; `register` wraps the real one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

from vllm_plugin import connectors
from vllm_plugin.profile import SLOTS_ARGUMENT, Profile

_TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_TRACES_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
_RESOURCE_ATTRIBUTES: Final = "OTEL_RESOURCE_ATTRIBUTES"

# With several pipeline stages vLLM keeps a micro-batch in each and reports each as a step, so
# its size is not that of the batch and the time to its report not that of a token. One sequence
# is one micro-batch: there the reports are right.
_NO_STAGES: Final = (
    "must be 1 where sequences are batched: the engine reports each stage's micro-batch as a "
    "step, so batch sizes and times per token would be wrong by the number of stages; spread "
    "the model by --tensor-parallel-size"
)


class ProfileContradiction(ValueError):
    """The engine's arguments contradict its profile; the message lists every contradiction."""


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _command_line_value(argv: Sequence[str], *options: str) -> str | None:
    """The last value of an option in an argument list, in vLLM's spellings of it."""
    found = None
    for position, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") in options:
            if equals:
                found = value
            elif position + 1 < len(argv):
                found = argv[position + 1]
    return found


def contradictions(
    args: Any, profile: Profile, environ: Mapping[str, str], argv: Sequence[str]
) -> list[str]:
    """Everything in the engine's arguments and environment that contradicts the profile."""
    found: list[str] = []
    for name, rule in profile.engine.items():
        if not hasattr(args, name):
            found.append(f"{_option(name)} is in the profile, this vLLM has no such argument")
            continue
        given = getattr(args, name)
        objection = rule.objection(given) if _is_given(args, name, argv) else None
        if objection:
            found.append(f"{_option(name)} is {given!r}, {objection}")
    found.extend(_disagreements(args, profile, argv))
    active = args.max_num_active_seqs
    if active is not None and (objection := profile.slots.objection(active)):
        found.append(f"{_option('max_num_active_seqs')} is {active!r}, {objection}")
    if args.data_parallel_size > 1:
        found.append(
            f"--data-parallel-size is {args.data_parallel_size!r}, must be 1: slots are counted "
            "per engine, and a rank can overflow while the sum is legal; run one engine per rank"
        )
    servers = max(
        args._api_process_count,
        _as_int(_command_line_value(argv, "--api-server-count", "-asc")),
    )
    if servers > 1:
        found.append(
            f"--api-server-count is {servers!r}, must be 1: the scheduler reports to one "
            "API server only"
        )
    if args.enable_elastic_ep:
        found.append(
            "--enable-elastic-ep is given, must not be: scaling replaces the statistics loggers "
            "by vLLM's own, so the engine's state would not be known"
        )
    if profile.batching and args.pipeline_parallel_size > 1:
        found.append(f"--pipeline-parallel-size is {args.pipeline_parallel_size!r}, {_NO_STAGES}")
    if args.kv_transfer_config is not None and (
        objection := connectors.objection(args.kv_transfer_config)
    ):
        found.append(f"--kv-transfer-config {objection}")
    if (
        args.kv_offloading_size is not None
        and args.kv_offloading_backend not in connectors.OFFLOADING_BACKENDS
    ):
        found.append(
            f"--kv-offloading-backend is {args.kv_offloading_backend!r}, must be one of "
            f"{', '.join(sorted(connectors.OFFLOADING_BACKENDS))}"
        )
    if args.scheduler_cls is not None:
        found.append("--scheduler-cls is given, must not be: the slots are those of vLLM's own")
    if any(word.partition("=")[0] == "--grpc" for word in argv):
        found.append("--grpc is given, must not be: the plugin's endpoints are served over HTTP")
    if _as_int(environ.get("VLLM_USE_RUST_FRONTEND")):
        found.append(
            f"VLLM_USE_RUST_FRONTEND is {environ['VLLM_USE_RUST_FRONTEND']!r}, must not be set: "
            "it loads no plugins, so nobody would see the slots"
        )
    return found


def _disagreements(args: Any, profile: Profile, argv: Sequence[str]) -> list[str]:
    """Arguments of which the profile sets one and that do not fit together as they will be.

    vLLM would refuse them too, later, and without a word on where the value came from. Where
    the other value is not known yet (a context length that the model has), it is vLLM that does.
    """
    found: list[str] = []
    for name, bound, least in (
        ("max_num_batched_tokens", SLOTS_ARGUMENT, True),
        ("long_prefill_token_threshold", "max_model_len", False),
    ):
        if name not in profile.engine or not hasattr(args, name):
            continue
        value = _as_it_will_be(args, profile, name, argv)
        limit = _as_it_will_be(args, profile, bound, argv)
        if not isinstance(value, int) or not isinstance(limit, int) or limit <= 0:
            continue  # not known yet, or refused for its type
        if value < limit if least else value > limit:
            origin = "" if _is_given(args, name, argv) else f" (by profile {profile.name!r})"
            found.append(
                f"{_option(name)} is {value!r}{origin}, must be at {'least' if least else 'most'} "
                f"{_option(bound)}, which is {limit!r}"
            )
    return found


def _as_it_will_be(args: Any, profile: Profile, name: str, argv: Sequence[str]) -> Any:
    """An argument as given, else as the profile sets it, else at vLLM's default."""
    if name in profile.engine and not _is_given(args, name, argv):
        return profile.engine[name].value
    return getattr(args, name)


def _is_given(args: Any, name: str, argv: Sequence[str]) -> bool:
    """Whether the operator gave an argument.

    Just vLLM's default cannot be told from none, except by the command line.
    """
    at_default = bool(getattr(args, name) == getattr(type(args), name, None))
    return not at_default or _command_line_value(argv, _option(name)) is not None


def _as_int(text: str | None) -> int:
    try:
        return int(text or "0")
    except ValueError:
        return 0  # vLLM's own parser refuses it, with its own message


def apply(
    args: Any, profile: Profile, environ: MutableMapping[str, str], argv: Sequence[str]
) -> None:
    """Sets what was not given. Raises ProfileContradiction for what contradicts the profile."""
    found = contradictions(args, profile, environ, argv)
    if found:
        raise ProfileContradiction(
            f"these settings contradict profile {profile.name!r} "
            f"({profile.measurement_type}): " + "; ".join(found)
        )
    for name, rule in profile.engine.items():
        if not _is_given(args, name, argv):
            setattr(args, name, rule.value)
    if args.otlp_traces_endpoint is None:
        args.otlp_traces_endpoint = traces_endpoint(environ)
    if args.otlp_traces_endpoint is not None:
        environ[_TRACES_PROTOCOL] = traces_protocol(environ, args.otlp_traces_endpoint)


def verify(config: Any, profile: Profile, *, headless: bool = False) -> None:
    """Checks vLLM's finished configuration, whatever it was made from (VLLM_DP_SIZE, say).

    `headless`: of a process without an API server. Workers on further nodes of one engine are
    such; the engine's first node is not, because its scheduler reports to its API server.
    """
    parallel = config.parallel_config
    found = []
    slots = slots_of(config.scheduler_config)
    if objection := profile.slots.objection(slots):
        found.append(f"the engine would have {slots} slots: {SLOTS_ARGUMENT} {objection}")
    if parallel.data_parallel_size > 1:
        found.append(f"data_parallel_size is {parallel.data_parallel_size}, must be 1")
    if parallel._api_process_count > 1:
        found.append(f"there would be {parallel._api_process_count} API servers, must be 1")
    if parallel.enable_elastic_ep:
        found.append("enable_elastic_ep is set, must not be")
    if profile.batching and parallel.pipeline_parallel_size > 1:
        found.append(f"pipeline_parallel_size is {parallel.pipeline_parallel_size}, {_NO_STAGES}")
    transfer = config.kv_transfer_config
    if transfer is not None and (objection := connectors.objection(transfer)):
        found.append(f"kv_transfer_config {objection}")
    if headless and not parallel.node_rank_within_dp:
        found.append(
            "--headless is given, must not be on the first node of an engine: without an API "
            "server nobody sees the slots"
        )
    if found:
        raise ProfileContradiction(
            f"vLLM's configuration contradicts profile {profile.name!r} "
            f"({profile.measurement_type}): " + "; ".join(found)
        )


def slots_of(scheduler_config: Any) -> int:
    """The sequences that this engine runs at once at most."""
    return int(scheduler_config.max_num_active_seqs or scheduler_config.max_num_seqs)


def traces_endpoint(environ: Mapping[str, str]) -> str | None:
    """Where the standard OTEL_* variables send traces, in the form vLLM wants; None: nowhere."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if environ.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        return None
    own = environ.get(_TRACES_ENDPOINT)
    if own:
        return own
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not base:
        return None
    if traces_protocol(environ, base) == "grpc":
        return base
    return base.rstrip("/") + "/v1/traces"


def traces_protocol(environ: Mapping[str, str], endpoint: str) -> str:
    """The OTLP protocol: as configured, else by the port that is registered for each."""
    configured = environ.get(_TRACES_PROTOCOL) or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if configured:
        return configured
    # A gRPC target may come without a scheme; an HTTP endpoint may not.
    return (
        "grpc"
        if endpoint.rstrip("/").endswith(":4317") or "://" not in endpoint
        else "http/protobuf"
    )


def label_resource(profile: Profile, environ: MutableMapping[str, str]) -> None:
    """Puts the profile into the OpenTelemetry resource of this process and its children."""
    environ.setdefault("OTEL_SERVICE_NAME", "vllm")
    ours = {"measurement_type": profile.measurement_type.value, "orch.profile": profile.name}
    kept = [
        pair
        for pair in environ.get(_RESOURCE_ATTRIBUTES, "").split(",")
        if pair and pair.partition("=")[0].strip() not in ours
    ]
    environ[_RESOURCE_ATTRIBUTES] = ",".join(kept + [f"{k}={v}" for k, v in ours.items()])


class NoIterationLines(logging.Filter):
    """Drops the line that vLLM logs per step when iteration details are on."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "Iteration(%d)" not in str(record.msg)

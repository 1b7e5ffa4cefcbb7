"""Decides what an engine with a profile may share with others: by KV connectors, or as a rank.

KV blocks: which of vLLM's connectors it may use, by configuration alone. An offloading connector
moves blocks of the engine's own KV cache to memory or storage and back: what it loads was computed
by this engine, as with its prefix cache. All others exchange blocks with other engines: a prompt
that another engine computed would be measured as this one's, and blocks that another engine still
reads outlive their request.

Ranks of data parallelism: each must be an engine of its own. With external load balancing every
rank has an API server and a scheduler of its own, so slots are granted, counted and signed there as
in any engine, and the sidecar has the ranks as pools, or as the addresses of one. Where vLLM itself
distributes the requests, one API server has several schedulers, and slots could not be granted by
rank.

Pure: takes any object with the fields of vLLM's `KVTransferConfig`, `EngineArgs` and
`ParallelConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

# --kv-offloading-backend sets one of the first three; the last has a pool in host memory.
OFFLOADERS: Final = frozenset(
    {
        "OffloadingConnector",
        "SimpleCPUOffloadConnector",
        "LMCacheMPConnector",
        "HiSparseConnector",
    }
)
OFFLOADING_BACKENDS: Final = frozenset({"native", "lmcache"})
_OFFLOADING_SPECS: Final = frozenset({"CPUOffloadingSpec", "TieringOffloadingSpec"})
# Storage. The others (p2p, kvcr) fetch blocks from other engines.
_TIERS: Final = frozenset({"fs", "obj", "example"})
# Several connectors at once, each of which must be allowed.
_MULTI_CONNECTOR: Final = "MultiConnector"

_EXTERNAL_RULE: Final = (
    "use external load balancing: start each rank as an engine of its own, by "
    "--data-parallel-size N --data-parallel-rank R and a --port, and list the ranks in the "
    "sidecar's pools"
)
_SINGLE_RULE: Final = (
    "the ranks of a model step together, so a sequence would share its steps with those of other "
    "ranks"
)
_DISTRIBUTES: Final = (
    "vLLM would distribute the requests to the ranks, and slots are granted by rank"
)

# vLLM's launcher of all ranks of a machine. It removes the option from the arguments of the engines
# that it starts, but not from their command line.
_LAUNCHER: Final = "--data-parallel-multi-port-external-lb"


def connector_objection(config: Any) -> str | None:
    """Returns why a KV transfer configuration is not allowed, or None if it is.

    `config`: vLLM's `KVTransferConfig`, or the mapping that it is created from.
    """
    connector = _get(config, "kv_connector")
    if connector is None:
        return None  # no connector: options for --kv-offloading-size
    module = _get(config, "kv_connector_module_path")
    if module:
        return (
            f"loads connector {connector!r} from {module!r}, must use one of vLLM's own: remove "
            "kv_connector_module_path"
        )
    extra = _get(config, "kv_connector_extra_config") or {}
    if connector == _MULTI_CONNECTOR:
        found = (connector_objection(part) for part in extra.get("connectors", ()))
        return next((each for each in found if each), None)
    if connector not in OFFLOADERS:
        return (
            f"has connector {connector!r}, must have an offloading connector "
            f"({', '.join(sorted(OFFLOADERS))}): others exchange KV blocks with other engines"
        )
    role = _get(config, "kv_role")
    if role not in (None, "kv_both"):
        return (
            f"has role {role!r}, must be 'kv_both': with other roles two engines share the work of "
            "each request"
        )
    return _objection_to_tiers(extra)


def _objection_to_tiers(extra: Mapping[str, Any]) -> str | None:
    spec = extra.get("spec_name", "CPUOffloadingSpec")
    if spec not in _OFFLOADING_SPECS:
        return f"has spec_name {spec!r}, must be one of {', '.join(sorted(_OFFLOADING_SPECS))}"
    for tier in extra.get("secondary_tiers", ()):
        kind = tier.get("type")
        if kind not in _TIERS:
            return (
                f"has a secondary tier of type {kind!r}, must be one of "
                f"{', '.join(sorted(_TIERS))}: others exchange KV blocks with other engines"
            )
    return None


def _get(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)


def rank_contradictions(
    args: Any, environ: Mapping[str, str], argv: Sequence[str], *, batching: bool
) -> list[str]:
    """Returns what is wrong with the data parallelism in an engine's arguments and environment."""
    size, remedy = (
        args.data_parallel_size,
        _EXTERNAL_RULE if batching else _SINGLE_RULE,
    )
    if size <= 1:
        # Only then vLLM reads the variable, which makes a script (`vllm.LLM`) one of the ranks.
        given = environ.get("VLLM_DP_SIZE", "1")
        return [] if given == "1" else [f"VLLM_DP_SIZE is {given!r}, must not be set: {remedy}"]
    if not batching:
        return [f"--data-parallel-size is {size!r}, must be 1: {_SINGLE_RULE}"]
    found = []
    if args.data_parallel_hybrid_lb or args.data_parallel_start_rank is not None:
        option = "hybrid-lb" if args.data_parallel_hybrid_lb else "start-rank"
        found.append(
            f"--data-parallel-{option} is given, must not be: {_DISTRIBUTES}; {_EXTERNAL_RULE}"
        )
    elif args.data_parallel_multi_port_external_lb or _LAUNCHER in _options(argv):
        found.append(
            f"{_LAUNCHER} is given, must not be: it starts and ends the ranks of a machine "
            f"together, which was never tested with a profile; {_EXTERNAL_RULE}"
        )
    elif not args.data_parallel_external_lb and args.data_parallel_rank is None:
        found.append(
            f"--data-parallel-size is {size!r}, must be 1 without --data-parallel-rank: "
            f"{_DISTRIBUTES}; {_EXTERNAL_RULE}"
        )
    if args.data_parallel_backend != "mp":
        found.append(
            f"--data-parallel-backend is {args.data_parallel_backend!r}, must be 'mp': with Ray "
            f"one process starts the engines of all ranks; {_EXTERNAL_RULE}"
        )
    return found


def rank_contradiction(parallel: Any, *, batching: bool) -> str | None:
    """Returns what is wrong with the data parallelism in vLLM's final configuration."""
    size = parallel.data_parallel_size
    if size <= 1:
        return None
    if not batching:
        return f"data_parallel_size is {size}, must be 1: {_SINGLE_RULE}"
    if parallel.data_parallel_external_lb:
        return None
    return f"data_parallel_size is {size}, must be 1: {_DISTRIBUTES}; {_EXTERNAL_RULE}"


def _options(argv: Sequence[str]) -> set[str]:
    return {word.partition("=")[0].replace("_", "-") for word in argv}

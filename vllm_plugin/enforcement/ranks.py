"""Decides which data parallelism is supported: that in which each rank is an engine of its own.

With external load balancing every rank has an API server and a scheduler of its own, so slots are
granted, counted and signed there as in any engine, and the sidecar has the ranks as pools, or as
the addresses of one. Where vLLM itself distributes the requests, one API server has several
schedulers, and slots could not be granted by rank.

Pure: takes any object with the fields of vLLM's `EngineArgs` and `ParallelConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

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


def contradictions(
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


def contradiction(parallel: Any, *, batching: bool) -> str | None:
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

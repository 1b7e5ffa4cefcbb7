"""The options of `orch simulate`, and the engine and traffic that they define."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Final

from orch_sidecar.tools.arguments import (
    TextParser,
    add_profile,
    add_seed,
    count,
    non_negative,
    positive,
    share,
)
from orch_sidecar.tools.simulate.compare import Policy
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.traffic import BulkClients, Replay, Workload
from orch_sidecar.tools.traces.options import add_bulk_clients, add_trace, trace_of
from vllm_plugin.contracts.profile import Profile

_DESCRIPTION: Final = """Simulates a profile's admission with an engine and traffic.

The admission is the code that `orch sidecar` runs, in virtual time. The engine is a model of
vLLM's scheduler: a step takes t0 + c * b^alpha milliseconds for b sequences, plus the time of its
prompt tokens. `/v1/capabilities` of a running engine reports these parameters as step_time and
prefill_tokens_per_s. Each policy gets the same requests:

  policy       admission by the profile
  fifo         admission in order of arrival, up to the slots
  direct       no admission: the engine's own queue, in order of arrival
  priority     no admission: the engine's own queue, interactive requests first"""

_EPILOG: Final = """examples:
  orch simulate --load 2                          twice the engine's capacity
  orch simulate --slots 64 --rate 8 --seconds 600
  orch simulate --load 2 --slo-factor 3 --policies policy direct
  orch simulate --trace conv.csv --length-factor 1/16 --load 2 --bulk-clients 24
  orch simulate --t0-ms 3.1 --c-ms 0.4 --alpha 0.8 --prefill-rate 20000 --load 1.2 --json"""


# The options that are a number of a model, by the name of its field: type and help.
_Fields = Mapping[str, tuple[Callable[[str], float], str]]
_SHAPE: Final[_Fields] = {
    "t0_ms": (positive, "t0 of a step"),
    "c_ms": (non_negative, "c of a step"),
    "alpha": (non_negative, "alpha of a step"),
    "prefill_tokens_per_s": (positive, "prompt tokens per second"),
    "noise": (non_negative, "sigma of a step's lognormal factor"),
}
_WORKLOAD: Final[_Fields] = {
    "bulk_share": (share, "share of bulk requests, from 0 to 1"),
    "bulk_factor": (positive, "length of bulk requests relative to interactive ones"),
    "prompt": (positive, "mean tokens of an interactive prompt"),
    "output": (positive, "mean tokens of an interactive answer"),
    "spread": (non_negative, "sigma of the logarithm of lengths"),
    "burstiness": (positive, "1: Poisson arrivals, below 1: burstier"),
}


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command."""
    found = TextParser(prog="orch simulate", description=_DESCRIPTION, epilog=_EPILOG)
    add_profile(found, "whose admission is simulated")
    add, online = found.add_argument, [policy.value for policy in Policy]
    add("--policies", nargs="+", choices=online, default=online, metavar="POLICY", help="(all)")
    add("--seconds", type=positive, help="duration of the arrivals (300, or the whole trace)")
    add_seed(found, 1, "arrivals and lengths")
    add("--json", action="store_true", help="print all results as JSON")
    add("--retry", action="store_true", help="rejected requests retry after their Retry-After")
    rate = found.add_mutually_exclusive_group()
    rate.add_argument("--rate", type=positive, help="requests per second")
    text = "the rate as a multiple of the capacity (1, or the rate of the trace)"
    rate.add_argument("--load", type=positive, help=text)
    slo = found.add_mutually_exclusive_group()
    slo.add_argument("--slo-ms", type=positive, help="interactive TTFT SLO (the profile's)")
    text = "the same, as a multiple of the p95 without load"
    slo.add_argument("--slo-factor", type=positive, help=text)
    _add_engine(found)
    _add_traffic(found)
    add_trace(found)
    return found


def shape_of(options: argparse.Namespace, profile: Profile) -> EngineShape:
    """Returns the engine: what is not given is the profile's, or the model's default."""
    return EngineShape.of(
        profile,
        options.slots,
        options.step_tokens,
        options.long_prefill_tokens,
        kv_tokens=options.kv_tokens,
        **{name: getattr(options, name) for name in _SHAPE},
    )


def traffic_of(options: argparse.Namespace) -> tuple[Workload | Replay, BulkClients | None]:
    """Returns the requests with a schedule, and the clients beside them, None without any.

    Raises OSError and InvalidTrace.
    """
    numbers = {name: getattr(options, name) for name in _WORKLOAD}
    workload = Workload(**numbers, max_tokens_known=options.max_tokens_known)
    clients = BulkClients(options.bulk_clients, workload) if options.bulk_clients else None
    if options.trace is None:
        if options.bulk_trace is not None:
            raise ValueError(f"--bulk-trace {options.bulk_trace}: it needs --trace beside it")
        return workload, clients
    bulk = None if options.bulk_trace is None else trace_of(options, options.bulk_trace)
    trace = trace_of(options, options.trace)
    return Replay(trace, bulk, options.max_tokens_known), clients


def _add_fields(group: argparse._ArgumentGroup, fields: _Fields, plain: object) -> None:
    """Adds an option for each field; its default is that of the plain model."""
    for name, (kind, text) in fields.items():
        default = getattr(plain, name)
        flag = "--" + name.replace("prefill_tokens_per_s", "prefill_rate").replace("_", "-")
        group.add_argument(
            flag, dest=name, type=kind, default=default, metavar="N", help=f"{text} ({default:g})"
        )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    add = group.add_argument
    add("--slots", type=count, help="concurrent sequences (the profile's)")
    _add_fields(group, _SHAPE, EngineShape())
    add("--kv-tokens", type=count, help="size of the KV cache (unlimited)")
    add("--step-tokens", type=count, help="max_num_batched_tokens (the profile's, or 2048)")
    long_help = "long_prefill_token_threshold (the profile's, or none)"
    add("--long-prefill-tokens", type=count, help=long_help)


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("traffic")
    _add_fields(group, _WORKLOAD, Workload())
    add_bulk_clients(group, "--prompt and --output times the factor")
    group.add_argument(
        "--max-tokens-known", action=argparse.BooleanOptionalAction, default=True,
        help="whether requests give max_tokens (they do)",
    )  # fmt: skip

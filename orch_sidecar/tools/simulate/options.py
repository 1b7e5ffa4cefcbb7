"""The options of `orch simulate`, and the engine and traffic that they define."""

from __future__ import annotations

import argparse
from typing import Final

from orch_sidecar.tools.arguments import (
    TextParser,
    count,
    count_or_zero,
    non_negative,
    positive,
    share,
)
from orch_sidecar.tools.simulate.compare import Policy
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.traffic import BulkClients, Replay
from orch_sidecar.tools.simulate.workload import Workload
from orch_sidecar.tools.traces.options import add_trace, trace_of
from vllm_plugin.contracts import profile as profiles
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


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command."""
    found = TextParser(prog="orch simulate", description=_DESCRIPTION, epilog=_EPILOG)
    add = found.add_argument
    add("--profile", default="cloud", help="name of a shipped profile, or a path (default cloud)")
    online = [policy.value for policy in Policy]
    add(
        "--policies",
        nargs="+",
        choices=online,
        default=online,
        metavar="POLICY",
        help="(all)",
    )
    add("--seconds", type=positive, help="duration of the arrivals (300, or the whole trace)")
    add("--seed", type=int, default=1, help="of arrivals and lengths (1)")
    add("--json", action="store_true", help="print all results as JSON")
    add("--retry", action="store_true", help="rejected requests retry after their Retry-After")
    rate = found.add_mutually_exclusive_group()
    rate.add_argument("--rate", type=positive, help="requests per second")
    rate.add_argument(
        "--load",
        type=positive,
        help="the rate as a multiple of the capacity (1, or the rate of the trace)",
    )
    slo = found.add_mutually_exclusive_group()
    slo.add_argument("--slo-ms", type=positive, help="interactive TTFT SLO (the profile's)")
    slo.add_argument(
        "--slo-factor", type=positive, help="the same, as a multiple of the p95 without load"
    )
    _add_engine(found)
    _add_traffic(found)
    add_trace(found)
    return found


def shape_of(options: argparse.Namespace, profile: Profile) -> EngineShape:
    """Returns the engine: what is not given is the profile's, or the model's default."""

    def of_engine(name: str, given: int | None, otherwise: int) -> int:
        rule = profile.engine.get(name)
        return given if given is not None else int(rule.value) if rule else otherwise

    plain = EngineShape()
    step_tokens = of_engine("max_num_batched_tokens", options.step_tokens, plain.step_tokens)
    long_prefill = of_engine(
        "long_prefill_token_threshold", options.long_prefill_tokens, step_tokens
    )
    return EngineShape(
        slots=of_engine(profiles.SLOTS_ARGUMENT, options.slots, plain.slots),
        t0_ms=options.t0_ms,
        c_ms=options.c_ms,
        alpha=options.alpha,
        prefill_tokens_per_s=options.prefill_rate,
        kv_tokens=options.kv_tokens,
        step_tokens=step_tokens,
        long_prefill_tokens=min(long_prefill, step_tokens),
        noise=options.noise,
    )


def traffic_of(options: argparse.Namespace) -> tuple[Workload | Replay, BulkClients | None]:
    """Returns the requests with a schedule, and the clients beside them, None without any.

    Raises OSError and InvalidTrace.
    """
    workload = Workload(
        bulk_share=options.bulk_share,
        prompt=options.prompt,
        output=options.output,
        bulk_factor=options.bulk_factor,
        spread=options.spread,
        burstiness=options.burstiness,
        max_tokens_known=options.max_tokens_known,
    )
    clients = BulkClients(options.bulk_clients, workload) if options.bulk_clients else None
    if options.trace is None:
        if options.bulk_trace is not None:
            raise ValueError(f"--bulk-trace {options.bulk_trace}: it needs --trace beside it")
        return workload, clients
    bulk = None if options.bulk_trace is None else trace_of(options, options.bulk_trace)
    trace = trace_of(options, options.trace)
    return Replay(trace, bulk, options.max_tokens_known), clients


def _add_engine(parser: argparse.ArgumentParser) -> None:
    plain = EngineShape()
    add = parser.add_argument_group("engine").add_argument
    add("--slots", type=count, help="concurrent sequences (the profile's)")
    add("--t0-ms", type=positive, default=plain.t0_ms, help=f"t0 of a step ({plain.t0_ms:g})")
    add("--c-ms", type=non_negative, default=plain.c_ms, help=f"c of a step ({plain.c_ms:g})")
    add("--alpha", type=non_negative, default=plain.alpha, help=f"alpha ({plain.alpha:g})")
    add(
        "--prefill-rate",
        type=positive,
        default=plain.prefill_tokens_per_s,
        help=f"prompt tokens per second ({plain.prefill_tokens_per_s:g})",
    )
    add("--kv-tokens", type=count, help="size of the KV cache (unlimited)")
    add("--step-tokens", type=count, help="max_num_batched_tokens (the profile's, or 2048)")
    add(
        "--long-prefill-tokens",
        type=count,
        help="long_prefill_token_threshold (the profile's, or none)",
    )
    add("--noise", type=non_negative, default=0.0, help="sigma of a step's lognormal factor (0)")


def _add_traffic(parser: argparse.ArgumentParser) -> None:
    plain = Workload()
    add = parser.add_argument_group("traffic").add_argument
    add(
        "--bulk-share",
        type=share,
        default=plain.bulk_share,
        help=f"share of bulk requests, from 0 to 1 ({plain.bulk_share:g})",
    )
    add(
        "--bulk-factor",
        type=positive,
        default=plain.bulk_factor,
        help=f"length of bulk requests relative to interactive ones ({plain.bulk_factor:g})",
    )
    add(
        "--prompt",
        type=positive,
        default=plain.prompt,
        help=f"mean tokens of an interactive prompt ({plain.prompt:g})",
    )
    add(
        "--output",
        type=positive,
        default=plain.output,
        help=f"mean tokens of an interactive answer ({plain.output:g})",
    )
    add(
        "--bulk-clients",
        type=count_or_zero,
        default=0,
        metavar="N",
        help="clients that always have a bulk request, of --prompt and --output times the factor",
    )
    add(
        "--spread",
        type=non_negative,
        default=plain.spread,
        help=f"sigma of the logarithm of lengths ({plain.spread:g})",
    )
    add(
        "--burstiness",
        type=positive,
        default=plain.burstiness,
        help=f"1: Poisson arrivals, below 1: burstier ({plain.burstiness:g})",
    )
    add(
        "--max-tokens-known",
        action=argparse.BooleanOptionalAction,
        default=plain.max_tokens_known,
        help="whether requests give max_tokens (they do)",
    )

"""`orch simulate`: simulates a profile's admission with a model of an engine and of traffic.

The only module here that prints and that reads a profile.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any, Final

from orch_sidecar.tools.arguments import count, non_negative, positive, share
from orch_sidecar.tools.simulate.compare import (
    Policy,
    Scenario,
    capacity,
    compare,
    unloaded_ttft_p95_ms,
    with_slo,
)
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.table import refusals, table
from orch_sidecar.tools.simulate.workload import Workload
from vllm_plugin import profile as profiles
from vllm_plugin.profile import AdmissionRules, Profile, ServiceClass

_DESCRIPTION: Final = """Simulates a profile's admission with an engine and traffic.

The admission is the code that `orch sidecar` runs, in virtual time. The engine is a model of
vLLM's scheduler: a step takes t0 + c * b^alpha milliseconds for b sequences, plus the time of its
prompt tokens. `/v1/capabilities` of a running engine reports these parameters as step_time and
prefill_tokens_per_s. Each policy gets the same requests:

  policy    admission by the profile
  fifo      admission in order of arrival, up to the slots
  direct    no admission: the engine's own queue, in order of arrival
  priority  no admission: the engine's own queue, interactive requests first"""

_EPILOG: Final = """examples:
  orch simulate --load 2                          twice the engine's capacity
  orch simulate --slots 64 --rate 8 --seconds 600
  orch simulate --load 2 --slo-factor 3 --policies policy direct
  orch simulate --t0-ms 3.1 --c-ms 0.4 --alpha 0.8 --prefill-rate 20000 --load 1.2 --json"""


def main(arguments: list[str]) -> None:
    """Prints the figures of each policy; exits with 2 for bad usage, with 1 on other errors."""
    options = _parser().parse_args(arguments)
    profile = profiles.load(options.profile)
    shape, workload = _shape(options, profile), _workload(options)
    try:
        capacity_per_s = capacity(shape, workload, options.seed)
        rules = _rules(options, profile, shape, workload)
        rate = options.rate if options.rate is not None else options.load * capacity_per_s
        scenario = Scenario(shape, workload, rate, options.seconds, options.seed, options.retry)
        found = compare(scenario, rules, [Policy(name) for name in options.policies])
    except ValueError as error:
        sys.exit(f"orch simulate: {error}")
    slo_ms = rules.of(ServiceClass.INTERACTIVE).ttft_p95_ms
    if options.json:
        document: dict[str, Any] = {
            "profile": profile.name,
            "engine": asdict(shape),
            "workload": asdict(workload),
            "seed": options.seed,
            "seconds": options.seconds,
            "rate_per_s": rate,
            "capacity_per_s": capacity_per_s,
            "interactive_ttft_slo_ms": slo_ms,
            "policies": {policy: asdict(figures) for policy, figures in found.items()},
        }
        print(json.dumps(document, indent=2))
        return
    slo = "no SLO" if slo_ms is None else f"interactive TTFT SLO {slo_ms:.0f} ms"
    print(
        f"{profile.name}, {shape.slots} slots, {rate:.2f} requests/s for {options.seconds:g} s "
        f"({rate / capacity_per_s:.2f} times the capacity of {capacity_per_s:.2f}/s), {slo}\n"
    )
    print(table(found))
    refused = refusals(found)
    if refused:
        print(f"\n{refused}")


def _shape(options: argparse.Namespace, profile: Profile) -> EngineShape:
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


def _workload(options: argparse.Namespace) -> Workload:
    return Workload(
        bulk_share=options.bulk_share,
        prompt=options.prompt,
        output=options.output,
        bulk_factor=options.bulk_factor,
        spread=options.spread,
        burstiness=options.burstiness,
        max_tokens_known=options.max_tokens_known,
    )


def _rules(
    options: argparse.Namespace, profile: Profile, shape: EngineShape, workload: Workload
) -> AdmissionRules:
    if options.slo_ms is not None:
        return with_slo(profile.admission, options.slo_ms)
    if options.slo_factor is not None:
        unloaded_ms = unloaded_ttft_p95_ms(shape, workload, options.seed)
        return with_slo(profile.admission, options.slo_factor * unloaded_ms)
    return profile.admission


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="orch simulate",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--profile", default="cloud", help="name of a shipped profile, or a path (default cloud)")
    names = [policy.value for policy in Policy]
    add("--policies", nargs="+", choices=names, default=names, metavar="POLICY", help="(all)")
    add("--seconds", type=positive, default=300.0, help="duration of the arrivals (300)")
    add("--seed", type=int, default=1, help="of arrivals and lengths (1)")
    add("--json", action="store_true", help="print all results as JSON")
    add("--retry", action="store_true", help="rejected requests retry after their Retry-After")
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--rate", type=positive, help="requests per second")
    rate.add_argument(
        "--load", type=positive, default=1.0, help="the rate as a multiple of the capacity (1)"
    )
    slo = parser.add_mutually_exclusive_group()
    slo.add_argument("--slo-ms", type=positive, help="interactive TTFT SLO (the profile's)")
    slo.add_argument(
        "--slo-factor", type=positive, help="the same, as a multiple of the p95 without load"
    )
    _add_engine(parser)
    _add_traffic(parser)
    return parser


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

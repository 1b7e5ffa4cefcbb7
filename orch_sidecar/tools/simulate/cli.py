"""`orch simulate`: simulates a profile's admission with a model of an engine and of traffic.

The only module here that prints and that reads a profile or a trace.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from orch_sidecar.tools.arguments import (
    TextParser,
    add_profile,
    add_seed,
    count,
    non_negative,
    positive,
    run_command,
    share,
)
from orch_sidecar.tools.simulate.compare import (
    Policy,
    Scenario,
    capacity,
    compare,
    refusals,
    table,
    unloaded_ttft_p95_ms,
    with_slo,
)
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.traffic import BulkClients, Replay, Traffic, Workload
from orch_sidecar.tools.terminal import Progress
from orch_sidecar.tools.traces import add_bulk_clients, add_trace, traces_of
from vllm_plugin.contracts import profile as profiles
from vllm_plugin.contracts.profile import AdmissionRules, Profile, ServiceClass

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
}
_WORKLOAD: Final[_Fields] = {
    "bulk_share": (share, "share of bulk requests, from 0 to 1"),
    "bulk_factor": (positive, "length of bulk requests relative to interactive ones"),
    "prompt": (positive, "mean tokens of an interactive prompt"),
    "output": (positive, "mean tokens of an interactive answer"),
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

    Raises OSError and ValueError.
    """
    numbers = {name: getattr(options, name) for name in _WORKLOAD}
    workload = Workload(**numbers)
    clients = BulkClients(options.bulk_clients, workload) if options.bulk_clients else None
    if options.trace is None:
        if options.bulk_trace is not None:
            raise ValueError(f"--bulk-trace {options.bulk_trace}: it needs --trace beside it")
        return workload, clients
    return Replay(*traces_of(options)), clients


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


_SECONDS: Final = 300.0


def main(arguments: list[str]) -> None:
    """Prints the figures of each policy; exits with 2 for bad usage."""
    options = parser().parse_args(arguments)
    run_command("orch simulate", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    profile = profiles.load(options.profile)
    shape = shape_of(options, profile)
    with Progress("reading the traffic") as progress:
        workload, clients = traffic_of(options)
        progress.phase("measuring the capacity")
        capacity_per_s = capacity(shape, workload, options.seed)
        rules = _rules(options, profile, shape, workload)
        rate = _rate(options, workload, capacity_per_s)
        seconds = options.seconds or _seconds(workload, rate)
        scenario = Scenario(shape, workload, rate, seconds, options.seed, clients)
        policies = [*map(Policy, options.policies)]

        def passed(number: int, over_s: float) -> None:
            of_all = f"({number + 1} of {len(policies)})"
            progress.phase(f"simulating {policies[number]} {of_all}")
            progress.share = min(1.0, over_s / seconds)

        found = compare(scenario, rules, policies, passed)
    slo_ms = rules.of(ServiceClass.INTERACTIVE).ttft_p95_ms
    if options.json:
        document: dict[str, Any] = {
            "profile": profile.name,
            "engine": asdict(shape),
            "workload": _described(options, workload),
            "bulk_clients": options.bulk_clients,
            "seed": options.seed,
            "seconds": seconds,
            "rate_per_s": rate,
            "capacity_per_s": capacity_per_s,
            "interactive_ttft_slo_ms": slo_ms,
            "policies": {policy: asdict(each) for policy, each in found.items()},
        }
        print(json.dumps(document, indent=2))
        return 0
    slo = "no SLO" if slo_ms is None else f"interactive TTFT SLO {slo_ms:.0f} ms"
    beside = f", {options.bulk_clients} bulk clients" if options.bulk_clients else ""
    print(
        f"{profile.name}, {shape.slots} slots, {rate:.2f} requests/s for {seconds:.4g} s "
        f"({rate / capacity_per_s:.2f} times the capacity of {capacity_per_s:.2f}/s){beside}, "
        f"{slo}\n"
    )
    print(table(found))
    refused = refusals(found)
    if refused:
        print(f"\n{refused}")
    return 0


def _rate(options: argparse.Namespace, workload: Traffic, capacity_per_s: float) -> float:
    if options.rate is not None:
        return float(options.rate)
    if isinstance(workload, Replay) and options.load is None:
        return workload.rate
    return float(options.load or 1.0) * capacity_per_s


def _seconds(workload: Traffic, rate: float) -> float:
    """Returns the duration of a trace at that rate, the gap after its last request included."""
    return workload.count / rate if isinstance(workload, Replay) else _SECONDS


def _described(options: argparse.Namespace, workload: Traffic) -> dict[str, Any]:
    if not isinstance(workload, Replay):
        return asdict(workload)
    bulk = workload.bulk
    return {
        "trace": workload.trace.name,
        "sha256": workload.trace.sha256,
        "requests": len(workload.trace.requests),
        "bulk_trace": None if bulk is None else bulk.name,
        "bulk_sha256": None if bulk is None else bulk.sha256,
        "length_factor": options.length_factor,
    }


def _rules(
    options: argparse.Namespace, profile: Profile, shape: EngineShape, workload: Traffic
) -> AdmissionRules:
    if options.slo_ms is not None:
        return with_slo(profile.admission, {"ttft": options.slo_ms})
    if options.slo_factor is not None:
        unloaded_ms = unloaded_ttft_p95_ms(shape, workload, options.seed)
        return with_slo(profile.admission, {"ttft": options.slo_factor * unloaded_ms})
    return profile.admission

"""`orch simulate`: simulates a profile's admission with a model of an engine and of traffic.

The only module here that prints and that reads a profile or a trace.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from orch_sidecar.tools.arguments import run_command
from orch_sidecar.tools.simulate.compare import (
    Policy,
    Scenario,
    capacity,
    compare,
    unloaded_ttft_p95_ms,
    with_slo,
)
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.options import parser, shape_of, traffic_of
from orch_sidecar.tools.simulate.report import Figures, refusals, table
from orch_sidecar.tools.simulate.traffic import Replay, Traffic
from orch_sidecar.tools.terminal import Progress
from vllm_plugin.contracts import profile as profiles
from vllm_plugin.contracts.profile import AdmissionRules, Profile, ServiceClass

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
        scenario = Scenario(shape, workload, rate, seconds, options.seed, options.retry, clients)
        found = _figures(scenario, rules, [*map(Policy, options.policies)], progress)
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


def _figures(
    scenario: Scenario, rules: AdmissionRules, policies: list[Policy], progress: Progress
) -> Mapping[str, Figures]:
    def passed(seconds: float) -> None:
        progress.share = min(1.0, seconds / scenario.seconds)

    def begins(policy: Policy) -> Callable[[float], None]:
        number = policies.index(policy) + 1
        progress.phase(f"simulating {policy} ({number} of {len(policies)})")
        return passed

    return compare(scenario, rules, policies, begins)


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
        return asdict(workload)  # type: ignore[call-overload, no-any-return]
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

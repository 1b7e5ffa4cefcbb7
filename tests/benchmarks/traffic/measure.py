"""Measures the scenarios on one engine, each way in turn."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from orch_sidecar.tools.facts.labels.figures import percentile
from tests.benchmarks.policy import summary
from tests.benchmarks.policy.call import Answer, Target
from tests.benchmarks.policy.load import closed_loop
from tests.benchmarks.policy.record import Record
from tests.benchmarks.policy.rig import Engine, NotServing
from tests.benchmarks.traffic import report
from tests.benchmarks.traffic.replay import replay
from tests.benchmarks.traffic.scenarios import (
    CLIENTS,
    Files,
    Kind,
    bulk_requests,
    endless,
    rate_of,
    schedule,
    seconds_of,
)
from tests.benchmarks.traffic.simulated import shape_of, simulate
from tests.benchmarks.traffic.ways import Way, way

WARM_S = 5.0
ALONE_S = 20.0


def measure(kinds: Sequence[Kind], files: Files, given: argparse.Namespace, record: Record) -> None:
    """Runs the scenarios on a real engine, and then in the simulator with the engine's figures."""
    with Engine(given.size, given.slots, *given.engine_arguments.split()) as engine:
        engine.wait()
        capacities: dict[str, float] = {}
        limits_ms: dict[str, float] = {}
        for trace in sorted({kind.trace for kind in kinds}):
            capacities[trace] = _capacity(engine, trace, files, given)
            limits_ms[trace] = _slo_ms(engine, trace, files, given)
            print(
                f"{trace}: capacity {capacities[trace]:.2f} requests/s, "
                f"SLO {limits_ms[trace]:.0f} ms",
                flush=True,
            )
        record.results |= {"capacity_per_s": capacities, "slo_ms": limits_ms}
        for kind in kinds:
            known = (capacities[kind.trace], limits_ms[kind.trace])
            _scenario(engine, kind, files, *known, given, record)
        capabilities = engine.capabilities()
    record.results["step_time"] = capabilities.get("step_time")
    for kind in kinds:
        if kind.bulk:
            simulate(kind, files, shape_of(capabilities), given.seconds, given.slo_times, record)


def _scenario(
    engine: Engine,
    kind: Kind,
    files: Files,
    capacity_per_s: float,
    slo_ms: float,
    given: argparse.Namespace,
    record: Record,
) -> None:
    replayed = files.replay(kind.trace)
    rate = rate_of(kind, replayed, capacity_per_s)
    warm_s = WARM_S if kind.load is not None else 0.0
    seconds = seconds_of(kind, replayed, given.seconds)
    requests = schedule(replayed, rate, warm_s + seconds)
    turns: dict[str, list[report.Turn]] = {name: [] for name in given.ways}
    for number in range(given.rounds):
        for name in given.ways[:: -1 if number % 2 else 1]:
            with way(name, engine, given.slots, slo_ms) as open_way:
                found = replay(
                    open_way,
                    requests,
                    bulk_requests(),
                    CLIENTS if kind.bulk else 0,
                    engine.counters,
                    warm_s=warm_s,
                    seconds=seconds,
                    grace_s=1.5 * slo_ms / 1000,
                )
            engine.rest()
            turns[name].append(report.turn_of(found, given.slots, slo_ms))
            turn = turns[name][-1]
            print(
                f"{kind.name}, round {number + 1}, {name}: {turn.tokens_per_s:.0f} tokens/s, "
                f"goodput {turn.interactive.goodput:.2f}/s{_late(found.answers, open_way)}",
                flush=True,
            )
    report.report(kind, turns, record)


def _late(answers: Sequence[Answer], through: Way) -> str:
    """Formats how late the generator itself was, where no semaphore held requests back."""
    if through.at_once is not None:
        return ""
    median_ms, _ = summary.lateness_ms(summary.of_class(answers, report.INTERACTIVE))
    return f"; generator late by {median_ms:.1f} ms"


def _capacity(engine: Engine, trace: str, files: Files, given: argparse.Namespace) -> float:
    """Requests per second of the saturated engine: tokens per second over their mean number."""
    replayed = files.replay(trace)
    loaded = closed_loop(
        Target(engine.port),
        endless(replayed),
        engine.counters,
        clients=2 * given.slots,
        warm_s=WARM_S,
        seconds=max(10.0, given.seconds / 2),
    )
    engine.rest()
    return loaded.after.since(loaded.before).tokens_per_s / replayed.output


def _slo_ms(engine: Engine, trace: str, files: Files, given: argparse.Namespace) -> float:
    """A multiple of the p95 TTFT of requests that are alone, without a sidecar.

    One client sends them one by one: at a low rate the first minute of a trace would be a dozen,
    none of them long.
    """
    loaded = closed_loop(
        Target(engine.port),
        endless(files.replay(trace)),
        engine.counters,
        clients=1,
        warm_s=0.0,
        seconds=ALONE_S,
    )
    engine.rest()
    first_ms = [
        1000 * (each.first_s - each.sent_s)
        for each in loaded.answers
        if each.first_s is not None and each.sent_s is not None
    ]
    late_ms = percentile(first_ms, 95)
    if late_ms is None:
        raise NotServing("no request was answered")
    return float(given.slo_times * late_ms)

"""Compares what `orch plan` predicts with what one and two engines behind a sidecar do.

Each engine has a core of its own. A warm-up of several concurrencies lets them measure their step
time and their prefill; the plan reads that from their capabilities, and predicts the goodput for a
conversation trace at a multiple of one engine's capacity. Then the same trace is replayed for real.
This is done with one engine, then with two, each time with a warm-up of its own: sidecar and
clients have the core that is free beside one engine, and slow down two.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Final

from orch_sidecar.tools.simulate.compare import capacity, with_slo
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.traffic import Arrival, Replay
from orch_sidecar.tools.sizing.engine_model import EngineModel, NotEnough
from orch_sidecar.tools.sizing.fleet import Demand, Prediction, of_capabilities
from orch_sidecar.tools.traces import read
from tests.benchmarks.policy import profiles, rig, work
from tests.benchmarks.policy.call import Answer, Target
from tests.benchmarks.policy.load import closed_loop, open_loop
from tests.benchmarks.policy.record import Record, at_most, table
from tests.benchmarks.policy.rig import Engine, NotServing, Sidecar
from vllm_plugin.contracts import profile
from vllm_plugin.contracts.profile import ServiceClass

SLOTS: Final = 8
GRACE_S: Final = 30.0
POINTS: Final = 10.0
EXCERPT: Final = Path(__file__).parents[2] / "traces" / "azure_llm_2023_conv.csv"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=rig.SIZES, default="small")
    parser.add_argument("--trace", type=Path, default=EXCERPT)
    parser.add_argument("--load", type=float, default=1.5, help="of one engine's capacity")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--length-factor", type=float, default=1 / 16)
    parser.add_argument("--slo-ttft-ms", type=float, default=2000.0)
    parser.add_argument("--slo-tpot-ms", type=float, default=200.0)


def quick(given: argparse.Namespace) -> None:
    given.seconds = 30.0


def run(given: argparse.Namespace, record: Record) -> None:
    traffic = Replay(read(given.trace).scaled(lengths=given.length_factor))
    slo = {"ttft": given.slo_ttft_ms, "tpot": given.slo_tpot_ms}
    document = profiles.policy(given.slo_ttft_ms, 600.0)
    document["admission"]["interactive"]["tpot_p95_ms"] = given.slo_tpot_ms
    path = profiles.write(rig.logs(), "planning", document)
    rules = with_slo(profile.load(str(path)).admission, slo)
    with (
        Engine(given.size, SLOTS, name="first", core=0) as first,
        Engine(given.size, SLOTS, name="second", core=1) as second,
    ):
        engines = [first, second]
        for engine in engines:
            engine.wait()
        rows, points = [], []
        rate, arrivals = 0.0, list[Arrival]()
        for number in (1, 2):
            models = _models(engines[:number], traffic)
            shape = _shape(models)
            if not arrivals:
                rate = given.load * capacity(shape, traffic, 0)
                arrivals = traffic.arrivals(rate, given.seconds, 0)
            predicted = Demand(shape, arrivals, given.seconds, rules, slo).predict(number)
            measured, refused = _measure(engines[:number], path, arrivals, slo, given.seconds)
            rows.append(_row(predicted, measured, refused))
            points.append(100 * (predicted.goodput - measured))
            record.results[f"engines_{number}"] = {
                "predicted": predicted.goodput, "measured": measured, "refused": refused,
                "models": [asdict(each) for each in models],
            }  # fmt: skip
        record.results["rate_per_s"] = rate
    print(f"{rate:.2f} requests/s, {len(arrivals)} requests")
    print(table(("engines", "predicted", "measured", "refused (predicted)", "refused"), rows))
    worst = max(map(abs, points))
    record.judge(at_most("goodput predicted and measured, points apart", worst, POINTS, ".1f"))


def _row(predicted: Prediction, measured: float, refused: float) -> list[str]:
    return [
        str(predicted.engines),
        f"{predicted.goodput:.1%}",
        f"{measured:.1%}",
        f"{predicted.refused:.1%}",
        f"{refused:.1%}",
    ]


def _models(engines: Sequence[Engine], traffic: Replay) -> list[EngineModel]:
    """The models of the engines, after a warm-up of all of them at once."""
    pools = _pools(engines, profiles.BASE)
    source = (
        work.Request(0.0, ServiceClass.BULK, max(2, round(traffic.prompt)), 24, 10**7 + number)
        for number in count()
    )
    with Sidecar(profiles.BASE, pools=pools, name="warm-up") as sidecar:
        target = Target(sidecar.port, lambda request: b"X-Orch-Class: bulk\r\n")
        for clients in (1, 2, 4, 6, 8, 2 * SLOTS):
            closed_loop(
                target, source, lambda: None, clients=clients * len(engines), warm_s=0.5,
                seconds=5.0,
            )  # fmt: skip
    tokens = round(traffic.prompt + traffic.output)
    models = []
    for engine in engines:
        engine.rest()
        try:
            models.append(of_capabilities(engine.capabilities(), tokens))
        except NotEnough as error:
            raise NotServing(str(error)) from error
    for each in models:
        prefill = each.shape().prefill_tokens_per_s
        print(f"t(8) = {each.curve.at(8):.1f} ms, {prefill:.0f} prompt tokens/s")
    return models


def _shape(models: Sequence[EngineModel]) -> EngineShape:
    """The mean of these engines."""
    shapes = [each.shape(slots=SLOTS) for each in models]
    return replace(
        shapes[0],
        t0_ms=fmean(each.t0_ms for each in shapes),
        c_ms=fmean(each.c_ms for each in shapes),
        alpha=fmean(each.alpha for each in shapes),
        prefill_tokens_per_s=fmean(each.prefill_tokens_per_s for each in shapes),
    )


def _pools(engines: Sequence[Engine], used: Path | str) -> list[dict[str, str]]:
    return [
        {"name": f"p{number}", "url": engine.url, "profile": str(used)}
        for number, engine in enumerate(engines)
    ]


def _measure(
    engines: Sequence[Engine],
    path: Path,
    arrivals: Sequence[Arrival],
    slo_ms: Mapping[str, float],
    seconds: float,
) -> tuple[float, float]:
    """The shares of all requests that were answered within the SLO, and refused."""
    requests = [
        work.Request(each.at, each.service_class, each.prompt, each.output, number)
        for number, each in enumerate(arrivals)
    ]
    with Sidecar(path, pools=_pools(engines, path), name="planned") as sidecar:
        target = Target(sidecar.port)
        asked = [replace(each, output_tokens=max(1, each.output_tokens)) for each in requests]
        loaded = open_loop(
            target, asked, lambda: None, warm_s=0.0, seconds=seconds, grace_s=GRACE_S
        )
    for engine in engines:
        engine.rest()
    kept = sum(_kept(answer, slo_ms) for answer in loaded.answers)
    refused = sum(answer.status == 429 for answer in loaded.answers)
    return kept / len(requests), refused / len(requests)


def _kept(answer: Answer, slo_ms: Mapping[str, float]) -> bool:
    if not answer.complete or answer.first_s is None or answer.last_s is None:
        return False
    if 1000 * (answer.first_s - answer.request.at_s) > slo_ms["ttft"]:
        return False
    tokens = answer.request.output_tokens
    took_ms = 1000 * (answer.last_s - answer.first_s)
    return tokens < 2 or took_ms / (tokens - 1) <= slo_ms["tpot"]

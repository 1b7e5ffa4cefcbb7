"""`orch plan`: how many engines and slots a traffic needs.

With `tune`, the only module here that prints, and that reads and writes files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from orch_sidecar.tools.arguments import (
    TextParser,
    add_plot,
    add_profile,
    add_slo,
    count,
    positive,
    run_command,
    share,
    slo_of,
)
from orch_sidecar.tools.bench.load.capabilities import engine_at
from orch_sidecar.tools.bench.load.endpoint import Endpoint
from orch_sidecar.tools.drawing.chart import Marked, Series, by_size
from orch_sidecar.tools.drawing.picture import drawn, require
from orch_sidecar.tools.drawing.texts import aligned, number_text, rounded
from orch_sidecar.tools.facts.comparison.cost import Prices, per_million
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.facts.tables.table import valid_rows
from orch_sidecar.tools.simulate.compare import with_slo
from orch_sidecar.tools.simulate.traffic import Replay
from orch_sidecar.tools.sizing.decision import Decision, bounds, decide
from orch_sidecar.tools.sizing.engine_model import EngineModel, FullSlots, MemoryBound, NotEnough
from orch_sidecar.tools.sizing.fleet import (
    Demand,
    Prediction,
    of_capabilities,
    of_facts,
)
from orch_sidecar.tools.terminal import Progress
from orch_sidecar.tools.traces import add_trace, traces_of
from vllm_plugin.contracts import profile as profiles

_COLUMNS: Final[dict[str, Callable[[Prediction], str]]] = {
    "engines": lambda each: str(each.engines),
    "goodput": lambda each: f"{each.goodput:.1%}",
    "per s": lambda each: f"{each.goodput_per_s:.2f}",
    "refused": lambda each: f"{each.refused:.1%}",
    "TTFT p95": lambda each: rounded(each.ttft_p95_ms),
    "TPOT p95 ms": lambda each: rounded(each.tpot_p95_ms),
    "tokens/s": lambda each: f"{each.tokens_per_s:.0f}",
    "busy": lambda each: f"{each.occupancy:.0%}",
}
# Reserved for the whole hour, however busy; the tokens are those of interactive requests that are
# served within the SLO, inputs included.
_MONEY = ("hour", "1M out in SLO")


def slots_text(decision: Decision, memory: MemoryBound | None, slots: int) -> str:
    """Returns the slots of each engine, and which bound they follow from."""
    limited = f", limited by {decision.binds.value}" if slots == decision.slots else ""
    unknown = "unknown; give --kv-gib and --kv-bytes-per-token"
    lines = [f"slots of each engine: {slots}{limited}", *bounds(decision, memory, unknown)]
    return "\n".join(lines)


def plan_text(
    predictions: Sequence[Prediction], target: float, engine_hour: float | None = None
) -> str:
    """Returns the table, and the number of engines that reaches the target.

    `engine_hour`: what an hour of one engine costs; None: the table has no money.
    """
    head = [*_COLUMNS, *(() if engine_hour is None else _MONEY)]
    rows = [
        [
            *(show(each) for show in _COLUMNS.values()),
            *(() if engine_hour is None else _money(each, engine_hour)),
        ]
        for each in predictions
    ]
    lines = aligned(head, rows, texts=0)
    enough = needed(predictions, target)
    if enough is None:
        lines.append(
            f"not enough: {predictions[-1].engines} engines serve "
            f"{predictions[-1].goodput:.1%} within the SLO, {target:.0%} are wanted; raise --most"
        )
    else:
        word = "engine is" if enough == 1 else "engines are"
        lines.append(f"{enough} {word} enough for {target:.0%} within the SLO")
    return "\n".join(lines)


def needed(predictions: Sequence[Prediction], target: float) -> int | None:
    """Returns the fewest engines that reach the target; None if none of them does."""
    return next((each.engines for each in predictions if each.goodput >= target), None)


def _money(prediction: Prediction, engine_hour: float) -> tuple[str, str]:
    hour, good_per_s = prediction.engines * engine_hour, prediction.good_tokens_per_s
    return number_text(hour), number_text(per_million(hour, good_per_s) if good_per_s else None)


_DESCRIPTION: Final = """Predicts how many engines, with how many slots, your traffic needs.

The traffic is a trace. The engine is a running one (--url: its measured step time, prefill and KV
cache), or rows of a table of facts at three batches or more (--fact). Each number of engines runs
the trace in virtual time, with the admission of the profile."""

_EPILOG: Final = """examples:
  orch plan --trace conv.csv --url http://127.0.0.1:8080 --slo-ttft-ms 1000 --slo-tpot-ms 100
  orch plan --trace conv.csv --fact tps_model_gpu.csv --slo-ttft-ms 500 --plot plan.png
  orch plan --trace conv.csv --fact tps_model_gpu.csv --slo-ttft-ms 500 --per-hour 2.50

exit codes: 0 enough engines were found, 1 they were not, or none answers, 2 bad usage"""


def main(arguments: list[str]) -> None:
    """Prints the plan; exits with 1 if no number of engines is enough, with 2 for bad usage."""
    options = parser().parse_args(arguments)
    run_command("orch plan", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    if options.plot is not None:
        require()
    profile = profiles.load(options.profile)
    traffic = Replay(*traces_of(options))
    tokens = round(traffic.prompt + traffic.output)
    slo_ms = slo_of(options)
    model = _with_memory(_model(options, tokens), options, tokens)
    largest = model.curve.largest
    full = FullSlots(model.shape(profile, largest), traffic)
    decision = decide(model, full, slo_ms.get("tpot"), largest)
    slots = options.slots or max(2, decision.slots)
    seconds = traffic.count / traffic.rate
    print(
        f"{traffic.trace.name}: {traffic.count} requests in {seconds:.0f} s, {traffic.rate:.2f}/s, "
        f"{traffic.prompt:.0f} tokens in, {traffic.output:.0f} out\nengine: {model.source}"
    )
    print(slots_text(decision, model.memory, slots))
    demand = Demand(
        model.shape(profile, slots),
        traffic.arrivals(traffic.rate, seconds, 0),
        seconds,
        with_slo(profile.admission, slo_ms),
        slo_ms,
    )
    found = []
    with Progress("predicting 1 engine") as progress:
        for each in demand.grow(options.most, options.goodput):
            found.append(each)
            progress.phase(f"predicting {len(found) + 1} engines")
    hour = None if options.per_hour is None else Prices(options.per_hour).hour(model.accelerators)
    print(plan_text(found, options.goodput, hour))
    if options.json is not None:
        predictions = [asdict(each) for each in found]
        document = {"slots": slots, "engine_hour": hour, "predictions": predictions}
        files.write(options.json, json.dumps(document, indent=1) + "\n")
    if options.plot is not None:
        title = f"{traffic.trace.name} on {model.source}, {slots} slots each"
        files.write(options.plot, _picture(found, options.goodput, title, options.plot.suffix))
        print(f"plot: {options.plot}")
    return 0 if needed(found, options.goodput) is not None else 1


def _model(options: argparse.Namespace, tokens: int) -> EngineModel:
    if options.fact is None:
        endpoint = Endpoint.of(options.url, pool=options.pool)
        return of_capabilities(asyncio.run(engine_at(endpoint)).entry, tokens)
    rows = (each.row for each in valid_rows(files.read(options.fact)))
    return of_facts(rows, options.prefill_rate, options.model_id, options.gpu)


def _with_memory(model: EngineModel, options: argparse.Namespace, tokens: int) -> EngineModel:
    """Returns the model with a KV cache of the size that was given, if one was."""
    if options.kv_gib is None:
        return model
    if options.kv_bytes_per_token is None:
        raise NotEnough(f"--kv-gib {options.kv_gib:g}: give --kv-bytes-per-token, too")
    size = int(options.kv_gib * 2**30) // options.kv_bytes_per_token
    return replace(model, memory=MemoryBound(tokens, size // tokens, size))


def _picture(found: Sequence[Prediction], target: float, title: str, suffix: str) -> bytes:
    engines = [float(each.engines) for each in found]
    series = Series("within the SLO", engines, [100 * each.goodput for each in found])
    wanted = Marked(f"wanted {target:.0%}", 100 * target, is_bound=True, horizontal=True)
    label, unit = "engines", "% of interactive requests"
    chart = by_size("Goodput", "Predicted.", label, unit, [series], True, wanted)
    return drawn(suffix, title, [chart])


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    found = TextParser(prog="orch plan", description=_DESCRIPTION, epilog=_EPILOG)
    add_profile(found, "of admission and step size")
    add_slo(found, "ttft", "tpot")
    add = found.add_argument
    add("--goodput", type=share, default=0.95, help="share within the SLO that is wanted (0.95)")
    add("--most", type=count, default=16, help="engines to try at most (16)")
    add("--slots", type=count, help="of each engine; default: those worth having")
    price_help = "price of an accelerator's hour (of the machine, without one): adds money"
    add("--per-hour", type=positive, metavar="PRICE", help=price_help)
    add_plot(found)
    add("--json", type=Path, metavar="FILE", help="write the predictions")
    add_trace(found, found.add_mutually_exclusive_group(required=True))
    group = found.add_argument_group("engine")
    engine, add = group.add_mutually_exclusive_group(required=True), group.add_argument
    engine.add_argument("--url", help="a running engine, or the sidecar in front of it")
    engine.add_argument("--fact", type=Path, metavar="CSV", help="a table of facts instead")
    add("--pool", help="the pool, of a sidecar with several")
    add("--model-id", help="of the rows to use")
    add("--gpu", help="of the rows to use")
    add("--prefill-rate", type=positive, help="prompt tokens per second (of the rows' TTFT)")
    add("--kv-gib", type=positive, help="size of the KV cache (of the running engine)")
    add("--kv-bytes-per-token", type=count, help="of a token in all layers, with --kv-gib")
    return found

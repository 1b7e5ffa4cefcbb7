"""`orch bench`: measures an endpoint (or a device), and says what the figure is worth.

The only module here that prints and writes files, but for `decode`'s own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import uvloop
from pydantic import BaseModel

from orch_sidecar.tools.bench.decode import cli as decode
from orch_sidecar.tools.bench.load.endpoint import EndpointError
from orch_sidecar.tools.bench.load.interrupt import Interrupted, interrupts, unless
from orch_sidecar.tools.bench.load.scenario import Scenario, Slo
from orch_sidecar.tools.bench.plan.options import (
    add_arrivals,
    add_common,
    add_length,
    counts,
    scenario_of,
    seconds,
)
from orch_sidecar.tools.bench.plan.planning import check_files, plan_of
from orch_sidecar.tools.bench.results.fact import NO_FACT, row_of
from orch_sidecar.tools.bench.results.result import Result, Status
from orch_sidecar.tools.bench.results.text import words
from orch_sidecar.tools.bench.runs import sweep
from orch_sidecar.tools.bench.runs.find_rate import find_rate
from orch_sidecar.tools.bench.runs.run import NotMeasurable, measure
from orch_sidecar.tools.facts.commands.terminal import escape_unencodable_output
from orch_sidecar.tools.facts.comparison import plot
from orch_sidecar.tools.facts.evidence.measured import Arrivals
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.tables.table import UnreadableFile

_DESCRIPTION: Final = """Measures an OpenAI endpoint and says what the figure is worth.

The label of a result (single_stream, batched_online, offline) is judged by what the engine did,
as /v1/capabilities tells it before and after: a result that was not measured as its label says
is invalid, with the reason. Decodes are never shared."""

_EPILOG: Final = """examples:
  orch bench single-stream --duration 30 --facts tps_model_gpu.csv
  orch bench batched-online --rate 8 --slo-ttft-ms 500 --slo-tpot-ms 50
  orch bench batched-online --rate 4 --find-rate --slo-ttft-ms 500
  orch bench offline --requests 1000
  orch bench sweep --concurrency 1,2,4,8,16 --duration 20 --plot sweep.png
  orch bench decode --sweep

exit codes: 0 measured (valid, preliminary or unverified), 1 refused, invalid or incomplete,
            2 bad usage"""

_HELP: Final = {
    Label.SINGLE_STREAM: "one client, the next request when the one before has ended",
    Label.BATCHED_ONLINE: "requests at a rate, or a closed loop of several clients",
    Label.OFFLINE: "everything at once: throughput only",
}

_Work = Callable[[argparse.Namespace, asyncio.Event], Awaitable[int]]


def main(arguments: list[str]) -> None:
    """Runs a command; exits with its code unless that is 0."""
    escape_unencodable_output()
    options = _parser().parse_args(arguments)
    code: int = options.run(options)
    if code:
        sys.exit(code)


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="orch bench", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=form
    )
    commands = parser.add_subparsers(dest="bench_command", metavar="COMMAND", required=True)
    for label, text in _HELP.items():
        each = commands.add_parser(label.value.replace("_", "-"), help=text, description=text)
        each.set_defaults(run=_caught(_run), label=label, find_rate=False)
        if label is Label.BATCHED_ONLINE:
            add_arrivals(each)
        add_length(each, label)
        add_common(each)
    text = "closed loops of several sizes: throughput and latency by batch"
    each = commands.add_parser("sweep", help=text, description=text)
    each.set_defaults(run=_caught(_sweep))
    each.add_argument(
        "--concurrency", type=counts, default=(1, 2, 4, 8, 16), metavar="B,B,...",
        help="default: 1,2,4,8,16",
    )  # fmt: skip
    each.add_argument(
        "--duration", type=seconds, default=20.0, metavar="SECONDS",
        help="of each, at least; default: %(default)g",
    )  # fmt: skip
    each.add_argument("--plot", type=Path, metavar="FILE", help="a .png or .svg")
    add_common(each)
    decode.add_command(commands)
    return parser


def _caught(work: _Work) -> Callable[[argparse.Namespace], int]:
    """The command with its errors told."""

    async def interruptible(options: argparse.Namespace) -> int:
        with interrupts() as interrupted:
            return await work(options, interrupted)

    def run(options: argparse.Namespace) -> int:
        try:
            check_files(options)
            return uvloop.run(interruptible(options))
        except (Interrupted, KeyboardInterrupt):
            return _told("stopped before anything was measured", 1)
        except (EndpointError, NotMeasurable) as error:
            return _told(error, 1)
        except (UnreadableFile, plot.PlotUnavailable, OSError, ValueError) as error:
            return _told(error, 2)

    return run


def _told(error: object, code: int) -> int:
    _say(f"orch bench: {error}")
    return code


def _say(text: str) -> None:
    print(text, file=sys.stderr)


async def _run(options: argparse.Namespace, interrupted: asyncio.Event) -> int:
    scenario = scenario_of(options, options.label)
    plan = await unless(interrupted, plan_of(options, scenario))
    if options.find_rate:
        return _keep(await find_rate(plan, options.trial, interrupted, _say), options)
    return _keep(await measure(plan, interrupted), options)


async def _sweep(options: argparse.Namespace, interrupted: asyncio.Event) -> int:
    slo = Slo(options.slo_ttft_ms, options.slo_tpot_ms, options.slo_latency_ms)
    base = Scenario(
        Label.BATCHED_ONLINE, Arrivals.CLOSED_LOOP, 1, options.duration, options.seed, slo=slo
    )
    plan = await unless(interrupted, plan_of(options, base))
    results: list[Result] = []
    ended_by = ""
    for number, clients in enumerate(options.concurrency):
        # Prompts of its own, and a warm-up at the very batch.
        run = replace(
            base, clients=clients, least_requests=2 * clients, warm_up=clients,
            seed=base.seed + number,
        )  # fmt: skip
        try:
            results.append(await measure(replace(plan, scenario=run), interrupted))
        except (EndpointError, NotMeasurable, Interrupted) as error:
            if not results:
                raise
            ended_by = f"at {clients} clients: {error}"
            break
        if results[-1].status is Status.INCOMPLETE:
            ended_by = f"at {clients} clients: it was stopped"
            break
    return _keep_sweep(sweep.sweep_of(results, ended_by), options)


def _keep_sweep(found: sweep.Sweep, options: argparse.Namespace) -> int:
    print(sweep.text(found))
    written = _write(found, options.output or Path(f"orch-sweep-{found.results[0].id}.json"))
    if options.facts is not None:
        for result in found.results:
            _add(result, options.facts, f"concurrency {result.scenario.clients}: ")
    if options.plot is not None and found.points:
        sweep.plot(found, options.plot)
        print(f"plot: {options.plot}")
    return 0 if written and found.complete and all(map(sweep.is_sound, found.results)) else 1


def _keep(result: Result, options: argparse.Namespace) -> int:
    print(words(result))
    written = _write(result, options.output or Path(f"orch-bench-{result.id}.json"))
    added = options.facts is None or _add(result, options.facts)
    return 0 if written and added and result.status not in NO_FACT else 1


def _add(result: Result, facts: Path, which: str = "") -> bool:
    """Whether the table has a row of it."""
    try:
        files.append(facts, [row_of(result)])
    except (ValueError, OSError) as error:
        _say(f"no row: {which}{error}")
        return False
    print(f"row: {which}{facts}")
    return True


def _write(document: BaseModel, path: Path) -> bool:
    """Whether it was written: where it was not, there is still a row to be added."""
    text = json.dumps(document.model_dump(mode="json"), separators=(",", ":"), allow_nan=False)
    try:
        files.write(path, text + "\n")
    except OSError as error:
        _say(f"no result: {path}: {error}")
        return False
    print(f"result: {path}")
    return True

"""`orch bench`: measures an endpoint or a device, and judges whether the figures are valid.

With `decode.cli` and `reports`, the only module here that prints and writes files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import uvloop
from pydantic import BaseModel

from orch_sidecar.tools.arguments import TextParser, add_plot, non_negative, run_command
from orch_sidecar.tools.bench.decode import cli as decode
from orch_sidecar.tools.bench.load.driver import interrupts, unless_interrupted
from orch_sidecar.tools.bench.plan import (
    InvalidOptions,
    add_arrivals,
    add_common,
    add_length,
    counts,
    plan_of,
    scenario_of,
    sweep_scenario,
)
from orch_sidecar.tools.bench.report.sweep import sweep_charts, sweep_title
from orch_sidecar.tools.bench.reports import (
    add_commands,
    add_report,
    check_files,
    page_of,
    write_report,
)
from orch_sidecar.tools.bench.results.fact import row_of, with_evidence
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.results.sweep import Sweep
from orch_sidecar.tools.bench.runs import loadgen
from orch_sidecar.tools.bench.runs.run import measure
from orch_sidecar.tools.bench.runs.series import find_rate, run_sweep
from orch_sidecar.tools.drawing.picture import drawn
from orch_sidecar.tools.facts.commands.terminal import escape_unencodable_output, print_error
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.facts.tables.row import Label

_DESCRIPTION: Final = """Measures an OpenAI endpoint and judges whether the figures are valid.

The label of a result (single_stream, batched_online, offline) is checked against what the engine
did, as its /v1/capabilities reports before and after the run: a result that contradicts its label
is invalid, with the reason. Identical requests are never coalesced."""

_EPILOG: Final = """examples:
  orch bench single-stream --duration 30 --facts tps_model_gpu.csv
  orch bench batched-online --rate 8 --slo-ttft-ms 500 --slo-tpot-ms 50
  orch bench batched-online --rate 4 --find-rate --slo-ttft-ms 500
  orch bench --trace conv.csv --length-factor 1/16 --bulk-clients 24 --slo-ttft-ms 500
  orch bench offline --requests 1000
  orch bench sweep --concurrency 1,2,4,8,16 --duration 20 --plot sweep.png
  orch bench decode --sweep
  orch bench compare monday.json friday.json --report compare.html

exit codes: 0 valid, preliminary or unverified, and one client of a sweep that is unbatched;
            1 not measurable, invalid or incomplete; 2 bad usage"""

_HELP: Final = {
    Label.SINGLE_STREAM: "one client, which sends its next request when one has ended",
    Label.BATCHED_ONLINE: "requests at a rate or by a trace, or a closed loop of several clients",
    Label.OFFLINE: "all requests at once: throughput only",
}

_Work = Callable[[argparse.Namespace, asyncio.Event], Awaitable[int]]


def main(arguments: list[str]) -> None:
    """Runs a command; exits with its code if that is not 0."""
    escape_unencodable_output()
    if arguments and arguments[0].partition("=")[0] == "--trace":
        arguments = ["batched-online", *arguments]  # the only one that replays a trace
    options = parser().parse_args(arguments)
    run_command(f"orch bench {options.bench_command}", lambda: int(options.run(options)))


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    found = TextParser(prog="orch bench", description=_DESCRIPTION, epilog=_EPILOG)
    commands = found.add_subparsers(dest="bench_command", metavar="COMMAND", required=True)
    for label, text in _HELP.items():
        each = commands.add_parser(label.value.replace("_", "-"), help=text, description=text)
        each.set_defaults(run=_measuring(_run), label=label, find_rate=False)
        if label is Label.BATCHED_ONLINE:
            add_arrivals(each)
        add_length(each, label)
        each.add_argument(
            "--loadgen", action="store_true",
            help="let MLCommons' loadgen send the requests, and keep its logs beside the result",
        )  # fmt: skip
        add_report(add_common(each))
    text = "closed loops of several concurrencies: throughput and latency by batch"
    each = commands.add_parser("sweep", help=text, description=text)
    each.set_defaults(run=_measuring(_sweep))
    add, text, sizes = each.add_argument, "default: 1,2,4,8,16", (1, 2, 4, 8, 16)
    add("--concurrency", type=counts, default=sizes, metavar="B,B,...", help=text)
    text = "of each concurrency, at least; default: %(default)g"
    add("--duration", type=non_negative, default=20.0, metavar="SECONDS", help=text)
    add_plot(each)
    add_report(add_common(each))
    decode.add_command(commands)
    add_commands(commands)
    return found


def _measuring(work: _Work) -> Callable[[argparse.Namespace], int]:
    """Makes a command of the work, which begins when its files can be written."""

    async def interruptible(options: argparse.Namespace) -> int:
        with interrupts() as interrupted:
            return await work(options, interrupted)

    def run(options: argparse.Namespace) -> int:
        check_files(options)
        return uvloop.run(interruptible(options))

    return run


async def _run(options: argparse.Namespace, interrupted: asyncio.Event) -> int:
    scenario = scenario_of(options, options.label)
    if options.loadgen:
        if options.find_rate:
            raise InvalidOptions("--find-rate: --loadgen sends one rate, give --rate alone")
        scenario = replace(scenario, loadgen=loadgen.check(scenario))
    plan = await unless_interrupted(interrupted, plan_of(options, scenario))
    if options.find_rate:
        return _report(await find_rate(plan, options.trial, interrupted, print_error), options)
    return _report(await measure(plan, interrupted, print_error), options)


async def _sweep(options: argparse.Namespace, interrupted: asyncio.Event) -> int:
    plan = await unless_interrupted(interrupted, plan_of(options, sweep_scenario(options)))
    found = await run_sweep(plan, options.concurrency, interrupted, print_error)
    return _report(found, options)


def _report(found: Result | Sweep, options: argparse.Namespace) -> int:
    """Prints and writes what was measured; returns the exit code."""
    swept = isinstance(found, Sweep)
    results = found.results if isinstance(found, Sweep) else [found]
    page = page_of(found)
    print(page.plain)
    output = options.output or Path(f"orch-{'sweep' if swept else 'bench'}-{results[0].id}.json")
    done = [_write(found, output)]
    if options.facts is not None:
        added = [_add(result, options.facts, swept=swept) for result in results]
        done += [] if swept else added  # one client of a sweep makes no row
    if isinstance(found, Sweep) and options.plot is not None and found.points:
        picture = drawn(options.plot.suffix, sweep_title(found), sweep_charts(found))
        files.write(options.plot, picture)
        print(f"plot: {options.plot}")
    done.append(write_report(page, options.report, output))
    return 0 if all(done) and found.is_sound else 1


def _add(result: Result, facts: Path, *, swept: bool) -> bool:
    """Appends a row to the table; returns whether that succeeded."""
    which = f"concurrency {result.scenario.clients}: " if swept else ""
    try:
        files.append(facts, [with_evidence(row_of(result), result, facts)])
    except (ValueError, OSError) as error:
        print_error(f"no row: {which}{error}")
        return False
    print(f"row: {which}{facts}")
    if missing := result.evidence.missing:
        print(f"  without evidence: {missing}")
    return True


def _write(document: BaseModel, path: Path) -> bool:
    """Writes a result file; returns whether that succeeded, as a row can still be added."""
    text = json.dumps(document.model_dump(mode="json"), separators=(",", ":"), allow_nan=False)
    try:
        files.write(path, text + "\n")
    except OSError as error:
        print_error(f"no result: {path}: {error}")
        return False
    print(f"result: {path}")
    return True

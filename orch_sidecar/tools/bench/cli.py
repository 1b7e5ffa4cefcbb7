"""`orch bench`: measures an endpoint or a device, and judges whether the figures are valid.

`decode.cli` and `reports` print and write files.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any, Final

import uvloop

from orch_sidecar.tools.arguments import TextParser, add_plot, counts, non_negative, run_command
from orch_sidecar.tools.bench.decode import cli as decode
from orch_sidecar.tools.bench.load.driver import cancelled_by_signals
from orch_sidecar.tools.bench.plan import add_arrivals, add_common, add_length, plan_of, scenario_of
from orch_sidecar.tools.bench.report.run import LABELS
from orch_sidecar.tools.bench.reports import add_commands, add_report, check_files, report
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.results.sweep import Sweep
from orch_sidecar.tools.bench.runs import loadgen
from orch_sidecar.tools.bench.runs.run import measure
from orch_sidecar.tools.bench.runs.series import find_rate, run_sweep
from orch_sidecar.tools.facts.commands.terminal import add_command
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.terminal import escape_unencodable_output

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

# What the options of a scenario are where there is no choice.
_ARRIVALS: Final[dict[Label, dict[str, Any]]] = {
    Label.SINGLE_STREAM: {"arrivals": Arrivals.ONE_BY_ONE, "concurrency": 1},
    Label.OFFLINE: {"arrivals": Arrivals.AT_ONCE},
}
_SWEEP: Final = "closed loops of several concurrencies: throughput and latency by batch"


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
    found.set_defaults(find_rate=False, loadgen=False, concurrencies=None, plot=None)
    commands = found.add_subparsers(dest="bench_command", metavar="COMMAND", required=True)
    for label, text in LABELS.items():
        each = add_command(commands, label.value.replace("_", "-"), _run, text)
        each.set_defaults(label=label, **_ARRIVALS.get(label, {}))
        if label not in _ARRIVALS:
            add_arrivals(each)
        add_length(each, label)
        each.add_argument(
            "--loadgen", action="store_true",
            help="let MLCommons' loadgen send the requests, and keep its logs beside the result",
        )  # fmt: skip
        add_report(add_common(each))
    each = add_command(commands, "sweep", _run, _SWEEP)
    each.set_defaults(label=Label.BATCHED_ONLINE, arrivals=Arrivals.CLOSED_LOOP, requests=1)
    each.add_argument(
        "--concurrency", type=counts, dest="concurrencies", default=(1, 2, 4, 8, 16),
        metavar="B,B,...", help="default: 1,2,4,8,16",
    )  # fmt: skip
    text = "of each concurrency, at least; default: %(default)g"
    each.add_argument("--duration", type=non_negative, default=20.0, metavar="SECONDS", help=text)
    add_plot(each)
    add_report(add_common(each))
    decode.add_commands(commands)
    add_commands(commands)
    return found


def _run(options: argparse.Namespace) -> int:
    check_files(options)
    return report(uvloop.run(measured(options)), options)


async def measured(options: argparse.Namespace) -> Result | Sweep:
    """Measures what the options say; a signal ends it early. Raises what `plan_of` and `measure`
    raise."""
    with cancelled_by_signals():
        scenario = scenario_of(options)
        if options.loadgen:
            if options.find_rate:
                raise ValueError("--find-rate: --loadgen sends one rate, give --rate alone")
            scenario = replace(scenario, loadgen=loadgen.check(scenario))
        plan = await plan_of(options, scenario)
        if options.concurrencies is not None:
            return await run_sweep(plan, options.concurrencies)
        if options.find_rate:
            return await find_rate(plan, options.trial)
        return await measure(plan)

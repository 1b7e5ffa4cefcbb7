"""`orch bench`: its options, the plan that follows from them, and what its commands do.

What the endpoint reports about itself fills what is not given. `decode.cli` has the options of its
own command; both write files by `reports`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final

import uvloop

from orch_sidecar.tools.arguments import (
    SLO_TIMES,
    TextParser,
    add_lengths,
    add_plot,
    add_seed,
    add_slo,
    count,
    count_or_zero,
    counts,
    file_of,
    given,
    non_negative,
    positive,
    run_command,
    slo_of,
)
from orch_sidecar.tools.bench.decode import cli as decode
from orch_sidecar.tools.bench.load import prompts
from orch_sidecar.tools.bench.load.capabilities import served_model, vocabulary
from orch_sidecar.tools.bench.load.driver import cancelled_by_signals
from orch_sidecar.tools.bench.load.endpoint import KEY_VARIABLE, Endpoint
from orch_sidecar.tools.bench.load.scenario import Plan, Scenario, replaying
from orch_sidecar.tools.bench.report.run import LABELS
from orch_sidecar.tools.bench.reports import add_commands, add_report, check_files, report
from orch_sidecar.tools.bench.results.result import GIVEN, Result
from orch_sidecar.tools.bench.results.sweep import Sweep
from orch_sidecar.tools.bench.runs import loadgen
from orch_sidecar.tools.bench.runs.run import measure
from orch_sidecar.tools.bench.runs.series import find_rate, run_sweep
from orch_sidecar.tools.facts.commands.terminal import add_command
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.publication import MIN_DURATION_S, MIN_QUERIES
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.terminal import escape_unencodable_output
from orch_sidecar.tools.traces import add_bulk_clients, add_trace, traces_of

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

# The options that a scenario has as they are, by its fields.
_STATED: Final = {name: name for name in ("label", "arrivals", "seed", "burstiness")} | {
    "least_requests": "requests",
    "least_seconds": "duration",
    "clients": "concurrency",
    "rate_per_s": "rate",
    "warm_up_requests": "warm_up",
}
# Options of arrivals that need another one beside them, by the one that they need.
_NEEDED: Final = {"rate": ("burstiness", "find_rate"), "trace": ("bulk_trace", "bulk_clients")}

_FIELD: Final = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([ -~]*?)[ \t]*")
# Header fields that every request has already, and the reason why --header must not set them.
_RESERVED_FIELDS: Final = {
    "host": "it follows from --url",
    "content-type": "it is always JSON",
    "content-length": "it follows from the body",
    "transfer-encoding": "requests are not chunked",
    "connection": "connections are kept alive",
    "x-orch-pool": "use --pool",
    "x-orch-no-coalesce": "a measurement never coalesces requests",
    "x-orch-run": "it is a secret of the run",
    "x-orch-scenario": "it is the id of the run",
}


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
            _add_arrivals(each)
        _add_length(each, label)
        each.add_argument(
            "--loadgen", action="store_true",
            help="let MLCommons' loadgen send the requests, and keep its logs beside the result",
        )  # fmt: skip
        _add_common(each)
    text = "closed loops of several concurrencies: throughput and latency by batch"
    each = add_command(commands, "sweep", _run, text)
    each.set_defaults(label=Label.BATCHED_ONLINE, arrivals=Arrivals.CLOSED_LOOP, requests=1)
    each.add_argument(
        "--concurrency", type=counts, dest="concurrencies", default=(1, 2, 4, 8, 16),
        metavar="B,B,...", help="default: 1,2,4,8,16",
    )  # fmt: skip
    text = "of each concurrency, at least; default: %(default)g"
    each.add_argument("--duration", type=non_negative, default=20.0, metavar="SECONDS", help=text)
    add_plot(each)
    _add_common(each)
    decode.add_commands(commands)
    add_commands(commands)
    return found


def add_endpoint(parser: argparse.ArgumentParser) -> None:
    """Adds what is measured, and how it is asked."""
    add = parser.add_argument_group("endpoint").add_argument
    add("--url", default="http://127.0.0.1:8080", help="default: %(default)s")
    add("--model", help="default: the first that the endpoint (or pool) serves")
    add("--pool", help="the pool, of a sidecar with several")
    text = f"added to every request; the API key is read from ${KEY_VARIABLE}"
    add("--header", action="append", type=header, default=[], metavar="'NAME: VALUE'", help=text)
    text = "how often a run begins again when others use the engine; default: %(default)s"
    add("--restarts", type=count_or_zero, default=3, metavar="N", help=text)


def _add_common(parser: argparse.ArgumentParser) -> None:
    """Adds the options of every scenario."""
    add_endpoint(parser)
    workload = parser.add_argument_group("workload")
    add = workload.add_argument
    text = "JSONL with prompt or messages, or JSON as of ShareGPT; default: synthetic prompts"
    add("--prompts", type=Path, metavar="FILE", help=text)
    add_lengths(workload, 512, None)
    text = "let the model end its answers (also for endpoints without ignore_eos)"
    add("--no-ignore-eos", action="store_true", help=text)
    add_seed(workload)
    add_slo(parser.add_argument_group("SLO, for goodput (milliseconds)"), *SLO_TIMES)
    output = parser.add_argument_group("output")
    add = output.add_argument
    kind = file_of(".json")
    add("--output", type=kind, metavar="JSON", help="default: orch-bench-<id>.json")
    text = "table to append a row to, if the result is valid"
    add("--facts", type=Path, metavar="CSV", help=text)
    add_report(output)
    add = parser.add_argument_group(
        "identity, if the engine does not report it (the row notes that it was given); "
        "a value that contradicts the report is an error"
    ).add_argument
    add("--engine", help="name and version, such as 'vLLM 0.32.0'")
    add("--precision", help="such as BF16")
    add("--gpu", help="such as 'NVIDIA H100 80GB HBM3'")
    add("--gpu-count", type=count_or_zero, help="0 without a GPU")
    add(
        "--model-id",
        help="another name that the engine serves, or the id of its loaded model; any id if the "
        "engine knows its model only by a path, or reports nothing",
    )
    add("--model-name", help="display name; default: the last part of the id")


def _add_length(parser: argparse.ArgumentParser, label: Label) -> None:
    """Adds the length of a run.

    Defaults: the fewest queries that MLPerf's early stopping can judge, and its minimum duration.
    Offline it requires one query of 24 576 samples, which are requests here; 1024 keep an engine of
    256 slots busy for four rounds.
    """
    if label is Label.OFFLINE:
        title, requests, sent = "length", 1024, "sent at once"
        lasts = "expected; the result notes if it was less"
    else:
        title, requests, sent = "length: until both are reached", MIN_QUERIES[label], "at least"
        lasts = "at least; a shorter run is preliminary"
    add = parser.add_argument_group(title).add_argument
    add("--requests", type=count, default=requests, help=f"{sent}; default: %(default)s")
    add(
        "--duration", type=non_negative, default=MIN_DURATION_S, metavar="SECONDS",
        help=f"{lasts}; default: %(default)g",
    )  # fmt: skip
    text = "sent before the measurement; default: %(default)s"
    add("--warm-up", type=count_or_zero, default=4, metavar="REQUESTS", help=text)


def _add_arrivals(parser: argparse.ArgumentParser) -> None:
    """Adds the arrivals of an online scenario."""
    group = parser.add_argument_group("arrivals")
    ways = group.add_mutually_exclusive_group(required=True)
    ways.add_argument("--rate", type=positive, help="requests per second, Poisson")
    text = "clients of a closed loop, 2 at least"
    ways.add_argument("--concurrency", type=partial(count, least=2), help=text)
    add = group.add_argument
    text = "gamma instead of Poisson: below 1 burstier, above 1 more regular, inf constant"
    add("--burstiness", type=lambda text: inf if text == "inf" else positive(text), help=text)
    text = "search from --rate for the largest rate at which 99 %% meet the SLO, then run it"
    add("--find-rate", action="store_true", help=text)
    text = "length of a trial of the search, at least 100 requests; default: %(default)g"
    add("--trial", type=positive, default=20.0, metavar="SECONDS", help=text)
    replayed = add_trace(parser, ways)
    add_bulk_clients(replayed, "--input-tokens and --output-tokens or of --prompts")


def header(text: str) -> tuple[str, str]:
    """Returns the parts of `Name: value`. Errors omit the value, which may be a key."""
    found = _FIELD.fullmatch(text)
    name = text.partition(":")[0]
    if found is None:
        shown = repr(name) if ":" in text else "a text without a colon"
        raise argparse.ArgumentTypeError(f"{shown}: a header must be 'Name: value' in ASCII")
    if (why := _RESERVED_FIELDS.get(name.lower())) is not None:
        raise argparse.ArgumentTypeError(f"{name!r} must not be set: {why}")
    return found[1], found[2]


def scenario_of(options: argparse.Namespace) -> Scenario:
    """Returns the scenario that the options define. A command without the options of
    `_add_arrivals` has its arrivals among them.

    Raises ValueError for an option that breaks a rule, with the option, its value and the rule, and
    OSError and ValueError for a file that is no trace.
    """
    found: dict[str, Any] = given(options, _STATED) | {"slo_ms": slo_of(options)}
    scenario = Scenario(**found if "arrivals" in found else found | _arrivals(options))
    return replace(scenario, loadgen=loadgen.check(scenario)) if options.loadgen else scenario


def _arrivals(options: argparse.Namespace) -> dict[str, Any]:
    """Returns what of a scenario follows from how its requests arrive."""
    for needed, names in _NEEDED.items():
        for name in names:
            if getattr(options, name) and getattr(options, needed) is None:
                raise ValueError(f"--{name.replace('_', '-')}: it needs --{needed} beside it")
    if options.find_rate and not slo_of(options):
        raise ValueError(
            "--find-rate needs an SLO: give --slo-ttft-ms, --slo-tpot-ms or --slo-latency-ms"
        )
    if options.find_rate and options.loadgen:
        raise ValueError("--find-rate: --loadgen sends one rate, give --rate alone")
    if options.trace is not None:
        from_s, until_s = options.trace_window
        return replaying(
            *traces_of(options),
            window_s=(from_s, until_s if isfinite(until_s) else None),
            time_factor=options.time_factor,
            length_factor=options.length_factor,
            bulk_clients=options.bulk_clients,
        )
    if options.concurrency is not None:
        return {"arrivals": Arrivals.CLOSED_LOOP}
    if options.burstiness is None:
        return {"arrivals": Arrivals.POISSON}
    if isfinite(options.burstiness):
        return {"arrivals": Arrivals.GAMMA}
    return {"arrivals": Arrivals.CONSTANT, "burstiness": None}


async def plan_of(options: argparse.Namespace) -> Plan:
    """Returns the plan. Raises EndpointError, OSError and ValueError."""
    scenario = scenario_of(options)
    endpoint = Endpoint.of(options.url, dict(options.header), options.pool)
    model = options.model or await served_model(endpoint)
    trace, ids = scenario.trace, tuple[int, ...]()
    if options.prompts is None or trace is not None:
        ids = await vocabulary(endpoint, model)
    if options.prompts is not None:
        read = prompts.from_file(options.prompts, options.output_tokens, options.seed)
        made, text = partial(prompts.cycle, read), f"{len(read)} of the file {options.prompts.name}"
    else:
        lengths = options.input_tokens, options.output_tokens or 128
        made = partial(prompts.synthetic, ids, *lengths)
        text = "synthetic, {} in, {} out".format(*lengths)
    if trace is not None:
        beside = f"; bulk: {text}" if trace.bulk_clients else ""
        text = f"synthetic, of the lengths of {trace.name}{beside}"
    output = options.output
    return Plan(
        endpoint=endpoint,
        model=model,
        scenario=replace(scenario, prompts=text),
        prompts=made,
        ignore_eos=not options.no_ignore_eos,
        given=given(options, {name: name for name in GIVEN}),
        for_row=options.facts is not None,
        ids=ids,
        # A test of MLCommons' load generator cannot be stopped, and there is one in a process.
        restarts=0 if scenario.loadgen else options.restarts,
        loadgen_logs=output and output.with_name(f"{output.stem}-loadgen"),
    )


async def measured(options: argparse.Namespace) -> Result | Sweep:
    """Measures what the options say; a signal ends it early. Raises what `plan_of` and `measure`
    raise."""
    with cancelled_by_signals():
        plan = await plan_of(options)
        if options.concurrencies is not None:
            return await run_sweep(plan, options.concurrencies)
        if options.find_rate:
            return await find_rate(plan, options.trial)
        return await measure(plan)


def _run(options: argparse.Namespace) -> int:
    check_files(options)
    found = uvloop.run(measured(options))
    code = report(found, options)
    if options.loadgen and isinstance(found, Result) and found.loadgen is None:
        sys.stdout.flush()
        os._exit(code)  # the thread of a test that goes on would abort an orderly exit
    return code

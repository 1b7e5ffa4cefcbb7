"""`orch bench`: measures an endpoint (or a device), and says what the figure is worth.

The only module here that prints and writes files, but for `decode`'s own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from orch_sidecar.bench import prompt_file, prompts, sweep
from orch_sidecar.bench.decode import cli as decode
from orch_sidecar.bench.endpoint import Endpoint, EndpointError
from orch_sidecar.bench.fact import NoFact, row_of
from orch_sidecar.bench.measure import NotMeasurable, Plan, measure
from orch_sidecar.bench.options import (
    Usage,
    add_common,
    add_length,
    api_key,
    count,
    counts,
    given_of,
    positive,
    scenario_of,
    seconds,
)
from orch_sidecar.bench.prompts import Prompt
from orch_sidecar.bench.rate_search import RateSearch, keeps
from orch_sidecar.bench.result import Result, Status
from orch_sidecar.bench.scenario import Scenario
from orch_sidecar.bench.words import words
from orch_sidecar.facts import files, plot
from orch_sidecar.facts.measured import Arrivals
from orch_sidecar.facts.row import Label
from orch_sidecar.facts.table import Unreadable

_DESCRIPTION: Final = """Measures an OpenAI endpoint and says what the figure is worth.

The label of a result (single_stream, batched_online, offline) is judged by what the engine did,
as /v1/capabilities tells it before and after: a result that was not measured as its label says
is invalid, with the reason. Decodes are never shared."""

_EPILOG: Final = """examples:
  orch bench single-stream --duration 30 --facts tps_model_gpu.csv
  orch bench batched-online --rate 8 --slo-ttft-ms 500 --slo-tpot-ms 50
  orch bench batched-online --rate 4 --find-rate --slo-ttft-ms 500
  orch bench offline --requests 1000 --duration 0
  orch bench sweep --concurrency 1,2,4,8,16 --duration 20 --plot sweep.png
  orch bench decode --sweep

exit codes: 0 measured (valid, preliminary or unverified), 1 refused, invalid or incomplete,
            2 bad usage"""

_HELP: Final = {
    Label.SINGLE_STREAM: "one client, the next request when the one before has ended",
    Label.BATCHED_ONLINE: "requests at a rate, or a closed loop of several clients",
    Label.OFFLINE: "everything at once: throughput only",
}


def main(arguments: list[str]) -> None:
    """Runs a command; exits with its code unless that is 0."""
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
        each.set_defaults(run=_caught(_run), label=label)
        if label is Label.BATCHED_ONLINE:
            _add_arrivals(each)
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


def _add_arrivals(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how requests come")
    how.add_argument("--rate", type=positive, help="requests per second, Poisson")
    how.add_argument(
        "--burstiness", type=positive,
        help="gamma instead of Poisson: below 1 burstier, above 1 more regular",
    )  # fmt: skip
    how.add_argument("--concurrency", type=count, help="a closed loop of so many clients instead")
    how.add_argument(
        "--find-rate", action="store_true",
        help="look for the largest rate at which 99 %% keep the SLO, from --rate on; then run it",
    )  # fmt: skip
    how.add_argument(
        "--trial", type=positive, default=20.0, metavar="SECONDS",
        help="length of a trial of the search; default: %(default)g",
    )  # fmt: skip


def _caught(work: Callable[[argparse.Namespace], Any]) -> Callable[[argparse.Namespace], int]:
    """The command with its errors told."""

    def run(options: argparse.Namespace) -> int:
        try:
            if getattr(options, "plot", None) is not None:
                plot.require(options.plot)  # before minutes of measuring, not after
            code: int = asyncio.run(work(options))
        except (Usage, plot.PlotUnavailable) as error:
            return _told(error, 2)
        except (EndpointError, NotMeasurable) as error:
            return _told(error, 1)
        except (OSError, ValueError) as error:
            return _told(error, 2)
        return code

    return run


def _told(error: Exception, code: int) -> int:
    print(f"orch bench: {error}", file=sys.stderr)
    return code


async def _run(options: argparse.Namespace) -> int:
    scenario = scenario_of(options, options.label)
    plan = await _plan(options, scenario)
    if getattr(options, "find_rate", False):
        found = await _found(plan, options)
        if found is None:
            return 1
        plan = found
    result = await measure(plan)
    print(words(result))
    return _keep(result, options)


async def _found(plan: Plan, options: argparse.Namespace) -> Plan | None:
    """The plan at the largest rate that keeps the SLO, by short trials; None if none does."""
    scenario = plan.scenario
    assert scenario.rate_per_s is not None
    search = RateSearch(scenario.rate_per_s)
    while not search.done:
        trial = replace(plan, scenario=scenario.at_rate(search.next_per_s, 1, options.trial))
        result = await measure(trial)
        if result.status is Status.INCOMPLETE:
            return None
        kept = keeps(result)
        share = "nothing" if result.goodput is None else f"{result.goodput.share:.1%}"
        print(f"{search.next_per_s:.4g}/s: {share} kept the SLO", file=sys.stderr)
        search.tell(kept=kept)
    if search.best_per_s is None:
        print("orch bench: no rate kept the SLO", file=sys.stderr)
        return None
    print(f"largest rate that keeps the SLO: {search.best_per_s:.4g}/s", file=sys.stderr)
    length = scenario.least_requests, scenario.least_seconds
    return replace(plan, scenario=scenario.at_rate(search.best_per_s, *length))


async def _sweep(options: argparse.Namespace) -> int:
    sizes: tuple[int, ...] = options.concurrency
    options.requests, options.warm_up = 1, 4
    base = Scenario(Label.BATCHED_ONLINE, Arrivals.CLOSED_LOOP, 1, options.duration, options.seed)
    plan = await _plan(options, base)
    results: list[Result] = []
    for clients in sizes:
        run = replace(base, clients=clients, least_requests=2 * clients, warm_up=min(clients, 4))
        result = await measure(replace(plan, scenario=run))
        results.append(result)
        if result.status is Status.INCOMPLETE:
            break
    found = sweep.sweep_of(results)
    print(sweep.text(found))
    _write(found, options.output or Path(f"orch-sweep-{results[0].id}.json"))
    if options.plot is not None and found.points:
        sweep.plot(found, options.plot)
        print(f"plot: {options.plot}")
    for result in results:
        if options.facts is not None and result.status in (Status.VALID, Status.PRELIMINARY):
            _add(result, options.facts)
    return 1 if results[-1].status is Status.INCOMPLETE or not found.points else 0


async def _plan(options: argparse.Namespace, scenario: Scenario) -> Plan:
    endpoint = Endpoint.of(options.url, api_key(), dict(options.header))
    model = options.model or await endpoint.model()
    made, told = await _prompts(options, endpoint, model)
    return Plan(
        endpoint=endpoint,
        model=model,
        pool=options.pool,
        scenario=scenario,
        prompts=made,
        prompts_told=told,
        ignore_eos=not options.no_ignore_eos,
        given=given_of(options),
    )


async def _prompts(
    options: argparse.Namespace, endpoint: Endpoint, model: str
) -> tuple[Callable[[int], Iterator[Prompt]], str]:
    """Prompts by seed, and what they are in words."""
    if options.prompts is not None:
        read = prompt_file.from_file(options.prompts, options.output_tokens, options.seed)
        return lambda seed: prompts.cycle(read, seed), f"file {options.prompts.name}"

    async def tokenize(text: str) -> list[int]:
        asked = {"model": model, "prompt": text, "add_special_tokens": False}
        answer = await endpoint.ask("/tokenize", asked)
        if answer is None:
            raise Usage(f"{endpoint.url} has no /tokenize for synthetic prompts: give --prompts")
        return list(answer["tokens"])

    ids = await prompts.vocabulary(tokenize)
    length, asked = options.input_tokens, options.output_tokens or 128
    told = f"synthetic, {length} in, {asked} out"
    return lambda seed: prompts.synthetic(ids, length, asked, seed), told


def _keep(result: Result, options: argparse.Namespace) -> int:
    _write(result, options.output or Path(f"orch-bench-{result.id}.json"))
    if options.facts is not None:
        _add(result, options.facts)
    return 1 if result.status in (Status.INVALID, Status.INCOMPLETE) else 0


def _add(result: Result, facts: Path) -> None:
    try:
        row = row_of(result)
    except NoFact as error:
        print(f"no row: {error}", file=sys.stderr)
        return
    try:
        files.append(facts, [row])
    except Unreadable as error:
        raise ValueError(str(error)) from error
    print(f"row: {facts}")


def _write(document: BaseModel, path: Path) -> None:
    files.write(path, json.dumps(document.model_dump(mode="json"), separators=(",", ":")) + "\n")
    print(f"result: {path}")

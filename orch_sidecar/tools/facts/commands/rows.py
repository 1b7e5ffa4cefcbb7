"""`orch facts from-jaeger` and others: makes rows of traces, of other tools' files and batches."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from orch_sidecar.tools.arguments import count_or_zero, number
from orch_sidecar.tools.drawing.texts import counted
from orch_sidecar.tools.facts.commands.terminal import (
    Commands,
    add_command,
    add_output_options,
    http_url,
    read_url,
    write_rows,
)
from orch_sidecar.tools.facts.evidence import aiperf, batches, guidellm, vllm_bench
from orch_sidecar.tools.facts.evidence.imported import read_run, to_row
from orch_sidecar.tools.facts.labels.documents import documents_in
from orch_sidecar.tools.facts.labels.measured import Engine, Run, Source
from orch_sidecar.tools.facts.labels.observation import States
from orch_sidecar.tools.facts.labels.snapshot import Snapshot, parse_snapshot
from orch_sidecar.tools.facts.tables.row import Row
from orch_sidecar.tools.facts.traces.spans import Span, all_spans, read_file, search
from orch_sidecar.tools.facts.traces.traffic import (
    ID_PAUSE_S,
    LEAST_GAP_S,
    Scenario,
    build_traffic,
    group_scenarios,
    margin_s,
)
from orch_sidecar.tools.facts.traces.verdict import judge_scenario
from orch_sidecar.tools.terminal import Progress, print_error
from vllm_plugin.contracts.lease_protocol import timestamp

_SCENARIO: Final = f"""A scenario is a set of requests with the same labels (measurement type,
model, pool, profile, engine and its conditions, precision, GPU), the same id and the same run
(X-Orch-Scenario, X-Orch-Run; `orch bench` sets both), without a pause of {ID_PAUSE_S:g} s, or
without an id of --gap seconds. A label is earned by the steps in the engine's spans: a scenario
with any objection makes no row, and its objections are printed. Sidecar and engine must both be
traced, with every request (no sampling)."""

_FROM_JAEGER: Final = f"""Makes rows from the traces of an interval in Jaeger (1.x or 2.x).

{_SCENARIO}"""

_FROM_JAEGER_EPILOG: Final = """examples:
  orch facts from-jaeger --since 30m --output tps_model_gpu.csv
  orch facts from-jaeger --url http://jaeger:16686 --scenario run-7
  orch facts from-jaeger --since 2026-05-01T08:00:00Z --until 2026-05-01T09:00:00Z --json"""

_FROM_OTLP: Final = f"""Makes rows from files of traces.

The files are those of the OpenTelemetry collector's file exporter, in JSON, or what Jaeger's page
or query service gives. The spans of one request may be in several lines and files.

{_SCENARIO}"""

_FROM_OTLP_EPILOG: Final = """examples:
  orch facts from-otlp traces.jsonl
  orch facts from-otlp traces-1.jsonl traces-2.jsonl --gap 300 --output tps_model_gpu.csv"""

# The traces that one search returns at most: Jaeger holds them in its memory.
_LIMIT: Final = 500
_URL: Final = "http://127.0.0.1:16686"
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")

_PROOF: Final = """
A file proves nothing about the engine. Save GET /v1/capabilities before the first request and
after the last answer, with the engine idle for two seconds both times, and give both: the row then
has the label of the file (or of the engine, where the file claims none), or the file is rejected
because the engine did something else, or did it at another time. Without them the row is
to_be_confirmed, and --engine, --precision, --gpu and --gpu-count are required instead."""


class _Tool(NamedTuple):
    """A tool whose files become rows. `command`: `from-` and this; `run`: makes a run of a parsed
    file; `files`: completes `Makes rows from`, with how to write them and to claim a label;
    `parts`: divides a file into runs."""

    command: str
    run: Callable[[object], Run]
    files: str
    parts: Callable[[object], Sequence[object]] = lambda document: [document]


_TOOLS: Final = (
    _Tool(
        "vllm-bench",
        vllm_bench.run,
        """files of `vllm bench serve --save-result --save-detailed`.

The figures are computed from every request, as those of `orch bench` are. A label is claimed with
--metadata measurement_type=LABEL.""",
    ),
    _Tool(
        "guidellm",
        guidellm.run,
        """reports of GuideLLM 0.7 or 0.8, one for each benchmark.

Write the report with --output kind=json,path=FILE. A label is claimed with
--label measurement_type=LABEL.""",
        guidellm.parts,
    ),
    _Tool(
        "aiperf",
        aiperf.run,
        """summaries of AIPerf (profile_export_aiperf.json).

Run it with --export-level records: the summary then has the tokens that the engine reported. Its
own count of tokens is of the text, tokenized again. It claims no label.""",
    ),
)

_EPILOG: Final = """examples:
  curl -s $SIDECAR/v1/capabilities > before.json
  ... the load ...
  curl -s $SIDECAR/v1/capabilities > after.json
  orch facts {command} result.json --capabilities-before before.json \\
    --capabilities-after after.json --output tps_model_gpu.csv
  orch facts {command} result.json --engine 'vLLM 0.32.0' --precision BF16 --gpu H100 --gpu-count 1

exit code 1: a run was rejected; the rows of all others are written or printed"""

_FROM_BATCH: Final = """Makes the row of a completed batch that had an offline engine for itself.

Save GET /v1/capabilities before the batch is created and after it has completed, with the engine
idle for two seconds both times. The batch is rejected if a row of it failed or ran twice, if the
engine served anybody else or generated other tokens, or if it never decoded a full batch. Where
clients have API keys, OPENAI_API_KEY is that of the batch. Exit code 1: it was rejected."""


def add_commands(commands: Commands) -> None:
    """Adds `from-jaeger`, `from-otlp`, a command for each tool, and `from-batch`."""
    texts = _FROM_JAEGER, _FROM_JAEGER_EPILOG
    parser = add_command(commands, "from-jaeger", _from_jaeger, *texts)
    add = parser.add_argument
    add(
        "--url",
        type=http_url,
        default=_URL,
        help=f"query service, with its base path (default: {_URL})",
    )
    service_help = "service name of the sidecar (default: orch-sidecar)"
    add("--service", default="orch-sidecar", help=service_help)
    add("--engine-service", default="vllm", help="service name of the engine (default: vllm)")
    since_help = "start: an age such as 90s or 1h, or a time in RFC 3339 (default: 1h)"
    add("--since", type=_moment, default="1h", help=since_help)
    add("--until", type=_moment, default="0s", help="end, in the same form (default: now)")
    _add_common(parser)

    texts = _FROM_OTLP, _FROM_OTLP_EPILOG
    _add_common(add_command(commands, "from-otlp", _from_otlp, *texts, files="files of traces"))

    for tool in _TOOLS:
        _add(commands, tool)
    parser = add_command(commands, "from-batch", _run_batch, _FROM_BATCH)
    add = parser.add_argument
    add("batch", metavar="ID", help="the batch")
    add("--url", type=http_url, default="http://127.0.0.1:8080", help="default: %(default)s")
    add_output_options(parser, "id of the model, served or loaded (default: the answers' own)")
    _add_states(parser, required=True)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--scenario", metavar="ID", help="only the scenario with this id")
    gap_help = (
        f"the pause in seconds that ends a scenario without an id, at least {LEAST_GAP_S:g} "
        "(default: 60)"
    )
    add("--gap", type=_gap_s, default=60.0, help=gap_help)
    id_help = "id of the model as the engine serves or loaded it (default: as requested)"
    add_output_options(parser, id_help)


def _from_jaeger(options: argparse.Namespace) -> int:
    first_ns, last_ns = options.since, options.until
    start, end = timestamp(first_ns / 1e9), timestamp(last_ns / 1e9)
    # Requests outside of the interval show whether a scenario is cut there.
    margin_ns = round(margin_s(options.gap) * 1e9)
    first_us, last_us = (first_ns - margin_ns) // 1000, (last_ns + margin_ns) // 1000
    spans: list[Span] = []
    with Progress("reading traces") as progress:
        for service in dict.fromkeys((options.service, options.engine_service)):
            progress.phase(f"reading traces of {service}")
            searched = partial(search, read_url, options.url, service, _LIMIT)
            spans += all_spans(searched, first_us, last_us, _LIMIT)
    place = f"{options.service} at {options.url} from {start} to {end}"
    return _make_rows(options, spans, f"jaeger:{options.service}", place, first_ns, last_ns)


def _from_otlp(options: argparse.Namespace) -> int:
    spans = [span for path in options.files for span in read_file(str(path), path.read_bytes())]
    names = "+".join(path.name for path in options.files)
    return _make_rows(options, spans, f"otlp:{names}", ", ".join(map(str, options.files)))


def _make_rows(
    options: argparse.Namespace,
    spans: Sequence[Span],
    source: str,
    place: str,
    first_ns: float = -inf,
    last_ns: float = inf,
) -> int:
    """Judges the scenarios in these spans, writes their rows, and prints the objections."""
    try:
        traffic = build_traffic(spans)
        found = group_scenarios(traffic, options.gap, first_ns, last_ns)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    selected = [each for each in found if options.scenario in (None, each.key.scenario)]
    named = Source(source, options.model_id, options.model_name)
    judged = [_row_or_why(each, named) for each in selected if not each.is_warmup]
    warmups = [each.name for each in selected if each.is_warmup]
    rows = write_rows(options, judged)
    if warmups:
        print_error(f"excluded warm-up: {', '.join(warmups)}")
    if not judged:
        which = "" if options.scenario is None else f" {options.scenario!r}"
        requests = counted(len(traffic.requests), "request")
        both = f"{counted(len(spans), 'span')}: both sidecar and engine must be traced"
        print_error(f"no scenario{which} in {place} ({requests} in {both})")
    return 0 if rows else 1


def _row_or_why(scenario: Scenario, source: Source) -> Row | str:
    """Returns the row of a scenario, or the text of the objections to it."""
    found = judge_scenario(scenario, source)
    if isinstance(found, Row):
        return found
    key, requests = scenario.key, counted(len(scenario.requests), "request")
    what = f"{key.measurement_type}, {key.model}, pool {key.pool}, {requests}"
    objections = (f"  {each.reason}: {each.detail}" for each in found)
    return "\n".join([f"invalid: {scenario.name} ({what})", *objections])


def _moment(text: str) -> int:
    """Parses a time, or an age, to nanoseconds since 1970."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return time.time_ns() - round(float(ago[1]) * _UNITS_S[ago[2]] * 1e9)
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError
    except ValueError:
        rule = "must be an age such as 90s, 30m, 1h or 2d, or a time with its zone in RFC 3339"
        raise argparse.ArgumentTypeError(f"{text!r} {rule}") from None
    return round(moment.timestamp() * 1e6) * 1000


def _gap_s(text: str) -> float:
    rule = (
        f"a number of seconds of at least {LEAST_GAP_S:g}: a shorter pause would pick single "
        "requests out of a run"
    )
    return number(text, rule, lambda value: value >= LEAST_GAP_S)


def _add(commands: Commands, tool: _Tool) -> None:
    command, description = f"from-{tool.command}", f"Makes rows from {tool.files}\n{_PROOF}"
    epilog, run = _EPILOG.format(command=command), partial(_run, tool)
    parser = add_command(commands, command, run, description, epilog, files="files of this tool")
    id_help = "id of the model: one that the engine serves or has loaded, if its state is given"
    id_help += " (default: the name in the file)"
    add_output_options(parser, id_help)
    declare = parser.add_argument_group("the engine, without its state").add_argument
    declare("--engine", help="name and version, such as 'vLLM 0.32.0'")
    declare("--precision", help="such as BF16")
    declare("--gpu", help="such as H100, or 'CPU (model of the processor)'")
    declare("--gpu-count", type=count_or_zero, metavar="N", help="0 without an accelerator")
    _add_states(parser)


def _add_states(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    proof = parser.add_argument_group("the state of the engine before and after a single run")
    add = partial(proof.add_argument, type=Path, metavar="FILE", required=required)
    add("--capabilities-before", help="GET /v1/capabilities, as JSON")
    add("--capabilities-after", help="GET /v1/capabilities, as JSON")
    proof.add_argument("--pool", help="the measured pool, if there are several")


def _run(tool: _Tool, options: argparse.Namespace) -> int:
    runs = [run for path in options.files for run in _runs(path, tool)]
    known = _known(options, len(runs))

    def row_of(document: object, tag: str) -> Row:
        return to_row(tool.run(document), known, Source(tag, options.model_id, options.model_name))

    made = [read_run(place, partial(row_of, part, tag)) for tag, place, part in runs]
    return 0 if len(write_rows(options, made)) == len(made) else 1


def _run_batch(options: argparse.Namespace) -> int:
    return 0 if write_rows(options, [read_run(options.batch, lambda: _batch_row(options))]) else 1


def _batch_row(options: argparse.Namespace) -> Row:
    """Reads a batch from its sidecar. Raises Rejection and ValueError."""
    key, place = os.environ.get("OPENAI_API_KEY"), f"{options.url}/v1/batches/"
    place += quote(options.batch, safe="")
    [(_, stated), *_] = documents_in(place, read_url(place, key))
    batch = batches.Batch.model_validate(stated)
    place = f"{options.url}/v1/files/{quote(batch.output_file_id, safe='')}/content"
    output = read_url(place, key)
    run = batches.to_run(batch, [line for _, line in documents_in(place, output)])
    tag = f"{options.batch} sha256:{hashlib.sha256(output).hexdigest()[:12]}"
    return to_row(run, _states(options), Source(tag, options.model_id, options.model_name))


def _runs(path: Path, tool: _Tool) -> Iterator[tuple[str, str, object]]:
    """Yields the runs of a file as documents, each with the tag of its source and its place."""
    content = path.read_bytes()
    stated = documents_in(str(path), content)
    found = [part for _, document in stated for part in tool.parts(document)]
    tag = f"{path.name} sha256:{hashlib.sha256(content).hexdigest()[:12]}"
    for place, part in enumerate(found, 1):
        which = f"#{place}" if len(found) > 1 else ""
        yield f"{tag}{which}", f"{path}{which}", part


def _known(options: argparse.Namespace, runs: int) -> States | Engine:
    """Returns what the options state about the engine; exits with 2 if they contradict."""
    saved = {options.capabilities_before, options.capabilities_after}
    declared = [options.engine, options.precision, options.gpu, options.gpu_count]
    if None not in saved and all(each is None for each in declared):
        if runs != 1:
            options.usage.error(f"capabilities require files with a single run, not {runs}")
        return _states(options)
    if saved != {None} or None in declared:
        options.usage.error(
            "give either both --capabilities-before and --capabilities-after, or all of --engine, "
            "--precision, --gpu and --gpu-count, which are part of the capabilities"
        )
    return Engine(*declared)


def _states(options: argparse.Namespace) -> States:
    saved = options.capabilities_before, options.capabilities_after
    return States(*(_snapshot(path, options.pool) for path in saved))


def _snapshot(path: Path, pool: str | None) -> Snapshot:
    [(_, document), *_] = documents_in(str(path), path.read_bytes())
    try:
        return parse_snapshot(document, pool)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None

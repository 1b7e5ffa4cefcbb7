"""`orch facts from-jaeger` and others: makes rows of traces, of other tools' files and batches."""

from __future__ import annotations

import argparse
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from orch_sidecar.tools.arguments import count_or_zero, number
from orch_sidecar.tools.drawing.texts import counted
from orch_sidecar.tools.facts.commands.terminal import Commands, add_command
from orch_sidecar.tools.facts.evidence import aiperf, batches, guidellm, vllm_bench
from orch_sidecar.tools.facts.evidence.imported import read_run, to_row
from orch_sidecar.tools.facts.labels.documents import documents_in, named
from orch_sidecar.tools.facts.labels.measured import ENGINE_COLUMNS, Engine, Source
from orch_sidecar.tools.facts.labels.observation import Run, States
from orch_sidecar.tools.facts.labels.snapshot import Snapshot, parse_snapshot
from orch_sidecar.tools.facts.signing.files import digest
from orch_sidecar.tools.facts.tables.files import append
from orch_sidecar.tools.facts.tables.row import COLUMNS, Row
from orch_sidecar.tools.facts.tables.table import record_text, row_fields
from orch_sidecar.tools.facts.traces.requests import build_traffic
from orch_sidecar.tools.facts.traces.scenarios import (
    LEAST_GAP_S,
    Scenario,
    group_scenarios,
    margin_s,
)
from orch_sidecar.tools.facts.traces.spans import Span, all_spans, read_file
from orch_sidecar.tools.facts.traces.verdict import judge_scenario
from orch_sidecar.tools.terminal import Progress, print_error, print_json
from vllm_plugin.contracts.lease_protocol import timestamp

# Runs as documents, each with the tag of its source and its place.
_Documents = Iterator[tuple[str, str, object]]

_SCENARIO: Final = """A scenario is the requests of one run; without an id, those between pauses of
--gap seconds. It makes a row if it earned its label by the steps in the engine's spans, else its
objections are printed. Sidecar and engine must both be traced, with every request (no sampling)."""

_FROM_JAEGER: Final = f"""Makes rows from the traces of an interval in Jaeger (1.x or 2.x).

{_SCENARIO}

examples:
  orch facts from-jaeger --since 30m --output tps_model_gpu.csv
  orch facts from-jaeger --url http://jaeger:16686 --scenario run-7
  orch facts from-jaeger --since 2026-05-01T08:00:00Z --until 2026-05-01T09:00:00Z --json"""

_FROM_OTLP: Final = f"""Makes rows from files of traces.

The files are those of the OpenTelemetry collector's file exporter, in JSON, or what Jaeger's page
or query service gives. The spans of one request may be in several lines and files.

{_SCENARIO}"""

# Of each tool, after what its files are.
_PROOF: Final = """

A file proves nothing about the engine. Save GET /v1/capabilities before the first request and
after the last answer, with the engine idle for two seconds both times, and give both: the row then
has the label of the file (or of the engine, where the file claims none), or the file is rejected
because the engine did something else, or did it at another time. Without them the row is
to_be_confirmed, and --engine, --precision, --gpu and --gpu-count are required instead.

examples:
  curl -s $SIDECAR/v1/capabilities > before.json
  ... the load ...
  curl -s $SIDECAR/v1/capabilities > after.json
  orch facts {command} result.json --capabilities-before before.json \\
    --capabilities-after after.json --output tps_model_gpu.csv
  orch facts {command} result.json --engine 'vLLM 0.32.0' --precision BF16 --gpu H100 --gpu-count 1

exit code 1: a run was rejected; the rows of all others are written or printed"""

_VLLM_BENCH: Final = """Makes rows from files of `vllm bench serve --save-result --save-detailed`.

A label is claimed with --metadata measurement_type=LABEL."""

_GUIDELLM: Final = """Makes rows from reports of GuideLLM 0.7 or 0.8, one for each benchmark.

Write the report with --output kind=json,path=FILE. A label is claimed with
--label measurement_type=LABEL."""

_AIPERF: Final = """Makes rows from summaries of AIPerf (profile_export_aiperf.json).

Run it with --export-level records: the summary then has the tokens that the engine reported. Its
own count of tokens is of the text, tokenized again. It claims no label."""

_FROM_BATCH: Final = """Makes the row of a completed batch that had an offline engine for itself.

Save GET /v1/capabilities before the batch is created and after it has completed, with the engine
idle for two seconds both times: it must have served nothing else, and a full batch once. Where
clients have API keys, OPENAI_API_KEY is that of the batch. Exit code 1: it was rejected."""

# The traces that one search returns at most: Jaeger holds them in its memory.
_LIMIT: Final = 500
_URL: Final = "http://127.0.0.1:16686"
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")


def add_commands(commands: Commands) -> None:
    """Adds `from-jaeger`, `from-otlp`, a command for each tool, and `from-batch`."""
    jaeger = add_command(commands, "from-jaeger", _from_jaeger, _FROM_JAEGER)
    add = jaeger.add_argument
    add("--url", type=_http_url, default=_URL, help="query service (default: %(default)s)")
    add("--service", default="orch-sidecar", help="the sidecar's service (default: %(default)s)")
    add("--engine-service", default="vllm", help="the engine's (default: %(default)s)")
    since = "start: an age such as 90s or 1h, or a time in RFC 3339 (default: %(default)s)"
    add("--since", type=_moment, default="1h", help=since)
    add("--until", type=_moment, default="0s", help="end, in the same form (default: now)")
    otlp = add_command(commands, "from-otlp", _from_otlp, _FROM_OTLP, files="files of traces")
    gap = f"the pause that ends a scenario without an id, from {LEAST_GAP_S:g} s (default: 60)"
    for traces in (jaeger, otlp):
        add = traces.add_argument
        add("--scenario", metavar="ID", help="only the scenario with this id")
        add("--gap", type=_gap_s, default=60.0, help=gap)
        _add_output(traces, "as requested")
    for command, run, about in (
        ("from-vllm-bench", vllm_bench.run, _VLLM_BENCH),
        ("from-guidellm", guidellm.run, _GUIDELLM),
        ("from-aiperf", aiperf.run, _AIPERF),
    ):
        work, text = partial(_import, run, _in_files), about + _PROOF.format(command=command)
        tool = add_command(commands, command, work, text, files="files of this tool")
        _add_output(tool, "the name in the file")
        add = tool.add_argument_group("the engine, without its state").add_argument
        add("--engine", help="name and version, such as 'vLLM 0.32.0'")
        add("--precision", help="such as BF16")
        add("--gpu", help="such as H100, or 'CPU (model of the processor)'")
        add("--gpu-count", type=count_or_zero, metavar="N", help="0 without an accelerator")
        _add_states(tool)
    batch = add_command(commands, "from-batch", partial(_import, batches.run, _batch), _FROM_BATCH)
    batch.add_argument("batch", metavar="ID", help="the batch")
    sidecar = "http://127.0.0.1:8080"
    batch.add_argument("--url", type=_http_url, default=sidecar, help="default: %(default)s")
    _add_output(batch, "the answers' own")
    _add_states(batch, required=True)


def _add_output(parser: argparse.ArgumentParser, model_id: str) -> None:
    """Adds where rows go, and the names of their model. `model_id`: its id by default."""
    add = parser.add_argument
    add("--output", type=Path, metavar="CSV", help="append rows that are not in this file yet")
    add("--json", action="store_true", help="print rows as JSON")
    id_help = f"id of the model, as the engine serves or loaded it (default: {model_id})"
    add("--model-id", help=id_help)
    add("--model-name", help="its name for display (default: the last part of its id)")


def _add_states(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    add = parser.add_argument_group("the engine before and after a single run").add_argument
    for end in ("before", "after"):
        text = "GET /v1/capabilities, as JSON"
        add(f"--capabilities-{end}", type=Path, metavar="FILE", required=required, help=text)
    add("--pool", help="the measured pool, if there are several")


def _from_jaeger(options: argparse.Namespace) -> int:
    first_ns, last_ns = options.since, options.until
    # Requests outside of the interval show whether a scenario is cut there.
    margin_ns = round(margin_s(options.gap) * 1e9)
    first_us, last_us = (first_ns - margin_ns) // 1000, (last_ns + margin_ns) // 1000
    spans: list[Span] = []
    with Progress("reading traces") as progress:
        for service in dict.fromkeys((options.service, options.engine_service)):
            progress.phase(f"reading traces of {service}")
            spans += all_spans(read_url, options.url, service, first_us, last_us, _LIMIT)
    start, end = timestamp(first_ns / 1e9), timestamp(last_ns / 1e9)
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
    with named(f"{source}: "):
        traffic = build_traffic(spans)
    found = group_scenarios(traffic, options.gap, first_ns, last_ns)
    selected = [each for each in found if options.scenario in (None, each.key.scenario)]
    made = [_row_or_why(options, each, source) for each in selected if not each.is_warmup]
    warmups = [each.name for each in selected if each.is_warmup]
    rows = _write(options, made)
    if warmups:
        print_error(f"excluded warm-up: {', '.join(warmups)}")
    if not made:
        which = "" if options.scenario is None else f" {options.scenario!r}"
        requests = counted(len(traffic.requests), "request")
        both = f"{counted(len(spans), 'span')}: both sidecar and engine must be traced"
        print_error(f"no scenario{which} in {place} ({requests} in {both})")
    return 0 if rows else 1


def _row_or_why(options: argparse.Namespace, scenario: Scenario, source: str) -> Row | str:
    """Returns the row of a scenario, or the text of the objections to it."""
    found = judge_scenario(scenario, Source(source, options.model_id, options.model_name))
    if isinstance(found, Row):
        return found
    key, requests = scenario.key, counted(len(scenario.requests), "request")
    what = f"{key.measurement_type}, {key.model}, pool {key.pool}, {requests}"
    objections = (f"  {each.reason}: {each.detail}" for each in found)
    return "\n".join([f"invalid: {scenario.name} ({what})", *objections])


def _import(
    run: Callable[[object], Run],
    read: Callable[[argparse.Namespace], _Documents],
    options: argparse.Namespace,
) -> int:
    """Makes a row of each run that is read. `run`: makes a run of a document."""
    found = [*read(options)]
    known = _known(options, len(found))

    def row_of(document: object, tag: str) -> Row:
        return to_row(run(document), known, Source(tag, options.model_id, options.model_name))

    made = [read_run(place, partial(row_of, part, tag)) for tag, place, part in found]
    return 0 if len(_write(options, made)) == len(made) else 1


def _in_files(options: argparse.Namespace) -> _Documents:
    for path in options.files:
        content = path.read_bytes()
        stated = documents_in(str(path), content)
        found = [part for _, document in stated for part in guidellm.parts(document)]
        for place, part in enumerate(found, 1):
            which = f"#{place}" if len(found) > 1 else ""
            yield f"{path.name} sha256:{digest(content)[:12]}{which}", f"{path}{which}", part


def _batch(options: argparse.Namespace) -> _Documents:
    """Yields a batch, with the lines of its output, as the sidecar has them."""
    key, place = os.environ.get("OPENAI_API_KEY"), f"{options.url}/v1/batches/"
    place += quote(options.batch, safe="")
    [(_, batch), *_] = documents_in(place, read_url(place, key))
    content, stated = b"", batch if isinstance(batch, dict) else {}
    stated.pop("output", None)  # the lines are those of its file
    if stated.get("output_file_id") is not None:
        file = quote(str(stated["output_file_id"]), safe="")
        place = f"{options.url}/v1/files/{file}/content"
        content = read_url(place, key)
        stated["output"] = [line for _, line in documents_in(place, content)]
    yield f"{options.batch} sha256:{digest(content)[:12]}", options.batch, batch


def _known(options: argparse.Namespace, runs: int) -> States | Engine:
    """Returns what the options state about the engine. Raises ValueError if they contradict."""
    saved = [options.capabilities_before, options.capabilities_after]
    declared: list[Any] = [getattr(options, name, None) for name in ENGINE_COLUMNS]
    if None not in saved and all(each is None for each in declared):
        if runs != 1:
            raise ValueError(f"capabilities require files with a single run, not {runs}")
        return States(*(_snapshot(path, options.pool) for path in saved))
    if any(saved) or None in declared:
        raise ValueError(
            "give either both --capabilities-before and --capabilities-after, or all of --engine, "
            "--precision, --gpu and --gpu-count, which are part of the capabilities"
        )
    return Engine(*declared)


def _snapshot(path: Path, pool: str | None) -> Snapshot:
    [(_, document), *_] = documents_in(str(path), path.read_bytes())
    with named(f"{path}: "):
        return parse_snapshot(document, pool)


def _write(options: argparse.Namespace, made: Sequence[Row | str]) -> list[Row]:
    """Appends rows to --output, or prints them as a table with a header, nothing without rows; with
    --json as a list. `made`: rows, and why others are none. Returns the rows. Raises Unavailable,
    OSError, ValueError."""
    rows = [each for each in made if isinstance(each, Row)]
    if options.output is not None and rows:
        added = append(options.output, rows)
        print_error(f"{options.output}: {added} added, {len(rows) - added} already present")
    if options.json:
        print_json([asdict(row) for row in rows])
    elif options.output is None and rows:
        records = (COLUMNS, *map(row_fields, rows))
        print("".join(record_text(each, "\n") for each in records), end="")
    for each in made:
        if isinstance(each, str):
            print_error(each)
    return rows


def read_url(url: str, key: str | None = None) -> bytes:
    """Returns what a server has there. `key`: of its client. Raises ValueError."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 (the scheme was checked)
    try:
        with urllib.request.urlopen(request, timeout=60.0) as response:  # noqa: S310
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        with error:
            body = " ".join(error.read().decode("utf-8", "replace").split())
        reason: object = f"{error.code} {error.reason}: {body:.300}"
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else repr(error)
    raise ValueError(f"cannot read {url.partition('?')[0]}: {reason}") from None


def _http_url(text: str) -> str:
    """Parses the URL of a server, without a slash at its end."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise argparse.ArgumentTypeError(f"{text!r} must begin with http:// or https://")
    return text.rstrip("/")


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
    rule = f"a number of seconds of at least {LEAST_GAP_S:g}: a shorter pause divides a run"
    return number(text, rule, lambda value: value >= LEAST_GAP_S)

"""`orch facts from-jaeger` and `from-otlp`: makes rows from traces."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Final

from orch_sidecar.tools.arguments import number
from orch_sidecar.tools.drawing.texts import counted
from orch_sidecar.tools.facts.commands.terminal import (
    Commands,
    add_command,
    add_output_options,
    http_url,
    read_url,
    write_rows,
)
from orch_sidecar.tools.facts.labels.measured import Source
from orch_sidecar.tools.facts.tables.table import UnreadableFile
from orch_sidecar.tools.facts.traces.requests import build_traffic
from orch_sidecar.tools.facts.traces.scenarios import (
    ID_PAUSE_S,
    LEAST_GAP_S,
    group_scenarios,
    margin_s,
)
from orch_sidecar.tools.facts.traces.spans import Span, all_spans, format_time, read_file, search
from orch_sidecar.tools.facts.traces.verdict import ScenarioVerdict, judge
from orch_sidecar.tools.terminal import Progress, print_error

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


def add_commands(commands: Commands) -> None:
    """Adds `from-jaeger` and `from-otlp`."""
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
    start, end = format_time(first_ns), format_time(last_ns)
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
    first_ns: int | None = None,
    last_ns: int | None = None,
) -> int:
    """Judges the scenarios in these spans, writes their rows, and prints the objections."""
    try:
        traffic = build_traffic(spans)
        found = group_scenarios(traffic, options.gap, first_ns, last_ns)
    except ValueError as error:
        raise UnreadableFile(f"{source}: {error}") from None
    selected = [each for each in found if options.scenario in (None, each.key.scenario)]
    named = Source(source, options.model_id, options.model_name)
    judged = [judge(each, named) for each in selected if not each.is_warmup]
    warmups = [each.name for each in selected if each.is_warmup]
    rows = [each.row for each in judged if each.row is not None]
    write_rows(options, rows)
    for each in judged:
        if each.row is None:
            print_error(_objections_text(each))
    if warmups:
        print_error(f"excluded warm-up: {', '.join(warmups)}")
    if not judged:
        which = "" if options.scenario is None else f" {options.scenario!r}"
        requests = counted(len(traffic.requests), "request")
        both = f"{counted(len(spans), 'span')}: both sidecar and engine must be traced"
        print_error(f"no scenario{which} in {place} ({requests} in {both})")
    return 0 if rows else 1


def _objections_text(judged: ScenarioVerdict) -> str:
    key, requests = judged.scenario.key, counted(len(judged.scenario.requests), "request")
    what = f"{key.measurement_type}, {key.model}, pool {key.pool}, {requests}"
    lines = [f"invalid: {judged.scenario.name} ({what})"]
    lines += [f"  {each.reason}: {each.detail}" for each in judged.objections]
    return "\n".join(lines)


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

"""`orch facts from-jaeger` and `from-otlp`: traces in, rows out."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orch_sidecar.tools.facts.tables.files import append
from orch_sidecar.tools.facts.tables.row import COLUMNS
from orch_sidecar.tools.facts.tables.table import record_text, row_fields
from orch_sidecar.tools.facts.traces import otlp_file
from orch_sidecar.tools.facts.traces.jaeger import Jaeger, JaegerError
from orch_sidecar.tools.facts.traces.otlp import Malformed
from orch_sidecar.tools.facts.traces.requests import Traffic, build_traffic
from orch_sidecar.tools.facts.traces.scenario_row import Given, Judged, at, judge, name_of
from orch_sidecar.tools.facts.traces.scenarios import group_scenarios
from orch_sidecar.tools.facts.traces.span import Span

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_WHAT: Final = """A scenario is what was labelled alike (measurement type, model, pool, profile,
engine, precision, GPU) and has one id (X-Orch-Scenario; `orch bench` gives one), or, without an
id, had no pause of --gap seconds. A label is earned by the steps that the engine's spans tell of:
a scenario with anything against it makes no row, and its reasons are told. Sidecar and engine
must both be traced, and every request (no sampling)."""

_FROM_JAEGER: Final = f"""Reads the traces of an interval from a Jaeger query service (1.x or 2.x).

{_WHAT}"""

_FROM_JAEGER_EPILOG: Final = """examples:
  orch facts from-jaeger --since 30m --output tps_model_gpu.csv
  orch facts from-jaeger --url http://jaeger:16686 --scenario run-7 --gpu "H100 80GB" --gpu-count 1
  orch facts from-jaeger --since 2026-05-01T08:00:00Z --until 2026-05-01T09:00:00Z --json"""

_FROM_OTLP: Final = f"""Reads files of the OpenTelemetry collector's file exporter (format json).

The spans of one request may stand in several lines and files.

{_WHAT}"""

_FROM_OTLP_EPILOG: Final = """examples:
  orch facts from-otlp traces.jsonl
  orch facts from-otlp traces-1.jsonl traces-2.jsonl --gap 300 --output tps_model_gpu.csv"""

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")


def add_commands(commands: Commands) -> None:
    """`from-jaeger` and `from-otlp`."""
    jaeger = commands.add_parser(
        "from-jaeger",
        help="rows from the traces in Jaeger",
        description=_FROM_JAEGER,
        epilog=_FROM_JAEGER_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = jaeger.add_argument
    url = "http://127.0.0.1:16686"
    add("--url", default=url, help=f"of the query service, with its base path ({url})")
    add("--service", default="orch-sidecar", help="the sidecar's name in traces (orch-sidecar)")
    add("--engine-service", default="vllm", help="the engine's name in traces (vllm)")
    add("--since", type=_moment, default="1h", help="so long ago, as 90s or 1h, or RFC 3339 (1h)")
    add("--until", type=_moment, default="0s", help="alike (now)")
    add("--limit", type=_count, default=500, help="traces that one search may give (500)")
    _add_common(jaeger)
    jaeger.set_defaults(run=_from_jaeger, usage=jaeger)
    otlp = commands.add_parser(
        "from-otlp",
        help="rows from files of traces",
        description=_FROM_OTLP,
        epilog=_FROM_OTLP_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    otlp.add_argument("files", nargs="+", type=Path, metavar="FILE")
    _add_common(otlp)
    otlp.set_defaults(run=_from_otlp, usage=otlp)


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--scenario", metavar="ID", help="only the scenario of this id")
    add("--gap", type=_seconds, default=60.0, help="seconds; a longer pause ends a scenario (60)")
    add("--output", type=Path, metavar="CSV", help="add the rows to this file")
    add("--json", action="store_true", help="everything, as JSON")
    given = parser.add_argument_group("where the spans do not tell it").add_argument
    given("--engine", type=_text, help="name and version, as 'vLLM 0.32.0'")
    given("--precision", type=_text)
    given("--gpu", type=_text)
    given("--gpu-count", type=_whole, metavar="N")
    given("--model-id", type=_text, help="where the name that it is served by is another")
    given("--model-name", type=_text)


def _from_jaeger(options: argparse.Namespace) -> int:
    first_ns, last_ns = options.since, options.until
    if last_ns < first_ns:
        options.usage.error(f"--until {at(last_ns)} is before --since {at(first_ns)}")
    # What lies just beyond the ends tells whether a scenario is cut there.
    beyond_ns = round(options.gap * 1e9)
    reach_us = (first_ns - beyond_ns) // 1000, (last_ns + beyond_ns) // 1000
    spans: list[Span] = []
    try:
        server = Jaeger(options.url, limit=options.limit)
        for service in dict.fromkeys((options.service, options.engine_service)):
            spans += server.spans(service, *reach_us)
    except (JaegerError, ValueError) as error:
        return _failed(f"from-jaeger: {error}")
    where = f"{options.service} at {options.url} from {at(first_ns)} to {at(last_ns)}"
    return _rows(options, spans, f"jaeger:{options.service}", where, first_ns, last_ns)


def _from_otlp(options: argparse.Namespace) -> int:
    spans: list[Span] = []
    try:
        for path in options.files:
            spans += otlp_file.read(str(path), path.read_bytes())
    except Malformed as error:
        return _failed(str(error))
    names = "+".join(path.name for path in options.files)
    return _rows(options, spans, f"otlp:{names}", ", ".join(map(str, options.files)))


def _rows(
    options: argparse.Namespace,
    spans: Sequence[Span],
    source: str,
    where: str,
    first_ns: int | None = None,
    last_ns: int | None = None,
) -> int:
    """Judges the scenarios of these spans, and tells and keeps what came of it."""
    try:
        traffic = build_traffic(spans)
    except ValueError as error:
        return _failed(f"{source}: {error}")
    found = group_scenarios(traffic, options.gap, first_ns, last_ns)
    wanted = [each for each in found.scenarios if options.scenario in (None, each.key.scenario)]
    models = {each.key.model for each in wanted}
    if len(models) > 1 and (options.model_id or options.model_name):
        options.usage.error(
            f"--model-id, --model-name: several models: {', '.join(sorted(models))}"
        )
    given = Given(**{name: getattr(options, name) for name in Given.__dataclass_fields__})
    judged = [judge(each, traffic, given, source) for each in wanted if not each.is_warmup]
    rows = [each.row for each in judged if each.row is not None]
    warmups = [name_of(each) for each in wanted if each.is_warmup]
    added = append(options.output, rows) if options.output is not None and rows else 0
    if options.json:
        document = _document(judged, traffic)
        print(json.dumps({**document, "warmups": warmups, "added": added}, indent=2))
    elif options.output is None and rows:
        print(
            "".join(record_text(each, "\n") for each in (COLUMNS, *map(row_fields, rows))), end=""
        )
    elif rows:
        print(f"{options.output}: {_counted(added, 'row')} added")
    for each in judged:
        if each.row is None:
            _tell(_objections_text(each))
    if warmups:
        _tell(f"left out: {', '.join(warmups)} (before a measurement)")
    if found.elsewhere:
        _tell(f"{_counted(len(found.elsewhere), 'request')} turned away, of no scenario")
    if not judged:
        which = "" if options.scenario is None else f" of scenario {options.scenario!r}"
        _tell(f"no scenario{which} in {where} ({_counted(len(traffic.requests), 'request')})")
    return 0 if rows else 1


def _objections_text(judged: Judged) -> str:
    key, requests = judged.scenario.key, _counted(len(judged.scenario.requests), "request")
    what = f"{key.measurement_type}, {key.model}, pool {key.pool}, {requests}"
    lines = [f"invalid: {name_of(judged.scenario)} ({what})"]
    lines += [f"  {each.reason}: {each.says}" for each in judged.objections]
    return "\n".join(lines)


def _document(judged: Sequence[Judged], traffic: Traffic) -> dict[str, Any]:
    return {
        "requests": len(traffic.requests),
        "rows": [asdict(each.row) for each in judged if each.row is not None],
        "invalid": [
            {
                **asdict(each.scenario.key),
                "start": at(each.scenario.start_ns),
                "end": at(each.scenario.end_ns),
                "requests": len(each.scenario.requests),
                "reasons": [asdict(objection) for objection in each.objections],
            }
            for each in judged
            if each.row is None
        ],
    }


def _failed(text: str) -> int:
    _tell(f"orch facts: {text}")
    return 2


def _tell(text: str) -> None:
    print(text, file=sys.stderr)


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _moment(text: str) -> int:
    """Nanoseconds since 1970."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return time.time_ns() - round(float(ago[1]) * _UNITS_S[ago[2]] * 1e9)
    rule = "must be so long ago, as 90s, 30m, 1h or 2d, or a time with its zone as RFC 3339 has it"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} {rule}") from None
    if moment.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} {rule}")
    return round(moment.timestamp() * 1e6) * 1000


def _seconds(text: str) -> float:
    return _number(text, float, lambda value: 0 < value < 1e9, "a number of seconds above 0")


def _count(text: str) -> int:
    return int(_number(text, int, lambda value: value >= 2, "a whole number from 2"))


def _whole(text: str) -> int:
    return int(_number(text, int, lambda value: value >= 0, "a whole number from 0"))


def _number(
    text: str, read: type[int] | type[float], sound: Callable[[float], bool], rule: str
) -> float:
    try:
        value = read(text)
    except ValueError:
        value = None
    if value is None or not sound(value):
        raise argparse.ArgumentTypeError(f"{text!r} must be {rule}")
    return value


def _text(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return text.strip()

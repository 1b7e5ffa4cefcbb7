"""Reads results, and writes reports: `--report` of every run, `orch bench report` and `compare`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from orch_sidecar.tools.bench.decode.result import DOCUMENT
from orch_sidecar.tools.bench.plan.output_files import add_report, report_beside, report_file
from orch_sidecar.tools.bench.report.compare import compare_report, compare_sweeps_report
from orch_sidecar.tools.bench.report.decode import decode_report
from orch_sidecar.tools.bench.report.run import run_report
from orch_sidecar.tools.bench.report.sweep import sweep_report
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.results.sweep import Sweep
from orch_sidecar.tools.drawing.page import Page
from orch_sidecar.tools.drawing.picture import PlotUnavailable
from orch_sidecar.tools.facts.labels.documents import first_problem, parse_json
from orch_sidecar.tools.facts.tables import files

_RULE: Final = "it must be a result that `orch bench` of this release has written"
# By its schema, what a file holds, and the page of it.
_KINDS: Final[dict[object, tuple[TypeAdapter[Any], Callable[[Any], Page]]]] = {
    "orch.bench/1": (TypeAdapter(Result), run_report),
    "orch.sweep/1": (TypeAdapter(Sweep), sweep_report),
    "orch.bench.decode/1": (DOCUMENT, decode_report),
}
# Two results of one kind, side by side.
_COMPARED: Final[dict[type, Callable[[Any, Any], Page]]] = {
    Result: compare_report,
    Sweep: compare_sweeps_report,
}

_COMPARE: Final = """Compares two runs, or two sweeps, by their result files: each figure of both
with its 95 % confidence interval, the change with its own, and the conditions in which they differ.
The intervals are of one run each: they do not contain what changes from run to run."""


def write_report(page: Page, wanted: Path | bool | None, beside: Path) -> bool:
    """Writes the report that is wanted, and returns whether that succeeded."""
    if wanted is None:
        return True
    return _write(page, wanted if isinstance(wanted, Path) else report_beside(beside))


def add_commands(commands: Any) -> None:
    """Adds `report` and `compare` to the result of `add_subparsers`."""
    text = "make the report of a result that was written before"
    each = commands.add_parser("report", help=text, description=f"{text.capitalize()}.")
    each.add_argument("result", type=Path, metavar="JSON", help="the result of a run or a sweep")
    each.add_argument(
        "--output", type=report_file, metavar="HTML", help="default: beside the result"
    )
    each.set_defaults(run=_report)
    text = "two runs side by side, with confidence intervals"
    each = commands.add_parser("compare", help=text, description=_COMPARE)
    each.add_argument("before", type=Path, metavar="A.json")
    each.add_argument("after", type=Path, metavar="B.json")
    add_report(each, "write a page, with their distributions; default: compare.html")
    each.set_defaults(run=_compare)


def _report(options: argparse.Namespace) -> int:
    result, page_of = _read(options.result)
    return 0 if _write(page_of(result), options.output or report_beside(options.result)) else 2


def _compare(options: argparse.Namespace) -> int:
    (before, _), (after, _) = _read(options.before), _read(options.after)
    compared = _COMPARED.get(type(before))
    if compared is None or type(before) is not type(after):
        raise ValueError(
            "only two runs, or two sweeps, can be compared: results of different kinds, and those "
            "of `orch bench decode`, cannot"
        )
    page = compared(before, after)
    print(page.plain)
    return 0 if write_report(page, options.report, Path("compare")) else 2


def _read(path: Path) -> tuple[Any, Callable[[Any], Page]]:
    """Returns a result, and what makes the page of it. Raises OSError and ValueError."""
    try:
        document = parse_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}): {_RULE}") from error
    named = document if isinstance(document, dict) else {}
    schema = named.get("schema_version", named.get("schema"))
    if schema not in _KINDS:
        raise ValueError(f"{path}: its schema is {str(schema)[:80]!r}: {_RULE}")
    kind, page_of = _KINDS[schema]
    try:
        return kind.validate_python(document), page_of
    except ValidationError as error:
        raise ValueError(f"{path}: {first_problem(error)}: {_RULE}") from error


def _write(page: Page, path: Path) -> bool:
    try:
        files.write(path, page.html)
    except (PlotUnavailable, OSError) as error:
        print(f"no report: {path}: {error}", file=sys.stderr)
        return False
    print(f"report: {path}")
    return True

"""Writes reports: `--report` of every run, `orch bench report` and `orch bench compare`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

from orch_sidecar.tools.bench.plan.output_files import add_report, report_beside, report_file
from orch_sidecar.tools.bench.report.files import compared, read, report_of
from orch_sidecar.tools.drawing.page import Page
from orch_sidecar.tools.drawing.picture import PlotUnavailable
from orch_sidecar.tools.facts.tables import files

# A file may have numbers that are too large for any figure.
_UNREADABLE: Final = (OSError, ValueError, ArithmeticError)

_COMPARE: Final = """Compares two runs, or two sweeps, by their result files: each figure of both
with its 95 % confidence interval, the change with its own, and the conditions in which they differ.
The intervals are of one run each: they do not contain what changes from run to run."""


def write_report(page: Page, wanted: Path | bool | None, beside: Path) -> bool:
    """Writes the report that is wanted, and returns whether that succeeded."""
    return wanted is None or _write(page, _path(wanted, beside))


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
    try:
        page = report_of(read(options.result))
    except _UNREADABLE as error:
        return _failed("report", error)
    return 0 if _write(page, options.output or report_beside(options.result)) else 2


def _compare(options: argparse.Namespace) -> int:
    try:
        page = compared(read(options.before), read(options.after))
    except _UNREADABLE as error:
        return _failed("compare", error)
    print(page.plain)
    return 0 if write_report(page, options.report, Path("compare")) else 2


def _path(wanted: Path | bool, beside: Path) -> Path:
    return wanted if isinstance(wanted, Path) else report_beside(beside)


def _write(page: Page, path: Path) -> bool:
    try:
        files.write(path, page.html)
    except (PlotUnavailable, OSError) as error:
        print(f"no report: {path}: {error}", file=sys.stderr)
        return False
    print(f"report: {path}")
    return True


def _failed(command: str, error: Exception) -> int:
    print(f"orch bench {command}: {error}", file=sys.stderr)
    return 2

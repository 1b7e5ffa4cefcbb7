"""Reads results, and writes reports: `--report` of every run, `orch bench report` and `compare`.

Checks before a run that all of its files can be written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from orch_sidecar.tools.bench.decode.result import DOCUMENT
from orch_sidecar.tools.bench.plan import InvalidOptions
from orch_sidecar.tools.bench.report.compare import compare_report, compare_sweeps_report
from orch_sidecar.tools.bench.report.decode import decode_report
from orch_sidecar.tools.bench.report.run import run_report
from orch_sidecar.tools.bench.report.sweep import sweep_report
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.results.sweep import Sweep
from orch_sidecar.tools.drawing.page import Page
from orch_sidecar.tools.drawing.picture import PlotUnavailable, require
from orch_sidecar.tools.facts.labels.documents import first_problem, parse_json
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.facts.tables.row import COLUMNS
from orch_sidecar.tools.facts.tables.table import UnreadableFile

_REPORT: Final = ".html"

# Characters of a file's first line: more than a header has.
_LINE: Final = 1000


def add_report(
    group: argparse._ActionsContainer,
    text: str = "write a page with figures and pictures; default: beside the result",
) -> None:
    """Adds `--report [HTML]`: a Path, True for the default one, None for no report."""
    group.add_argument(
        "--report", nargs="?", const=True, type=report_file, metavar="HTML", help=text
    )


def report_file(text: str) -> Path:
    """Parses the path of a report. A result is never mistaken for one, and overwritten."""
    path = Path(text)
    if path.suffix.lower() != _REPORT:
        raise argparse.ArgumentTypeError(f"{text!r} must end in {_REPORT}")
    return path


def report_beside(path: Path) -> Path:
    """Returns the path of the report of a result."""
    return path.with_suffix(_REPORT)


def check_files(options: argparse.Namespace) -> None:
    """Raises InvalidOptions, or what `picture.require` raises, where no result could be written."""
    given: dict[str, Path] = {
        f"--{name} {path}": path
        for name in ("output", "facts", "plot", "report")
        if isinstance(path := getattr(options, name, None), Path)
    }
    if getattr(options, "report", None) is True and options.output is not None:
        path = report_beside(options.output)
        given[f"--report {path}"] = path
    taken: dict[Path, str] = {}
    for option, path in given.items():
        if path.is_dir() or not path.resolve().parent.is_dir():
            raise InvalidOptions(f"{option}: it must be a file in an existing folder")
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise InvalidOptions(f"{option}: it must not be the file of {other}")
        _check_writable(option, path)
    if options.output is None:
        _check_writable("without --output: the result", Path("orch-bench.json"))
    elif _is_table(options.output):
        raise InvalidOptions(
            f"--output {options.output}: the file is a table of facts and would be overwritten; "
            "use --facts to append to it"
        )
    if getattr(options, "plot", None) is not None:
        require(options.plot)
    if getattr(options, "report", None) is not None:
        require()
    if options.facts is not None:
        try:
            files.check_appendable(options.facts)
        except UnreadableFile as error:
            raise InvalidOptions(f"--facts {error}") from None


def _check_writable(option: str, path: Path) -> None:
    try:
        files.check_writable(path)
    except OSError as error:
        raise InvalidOptions(f"{option}: cannot be written: {error.strerror or error}") from None


def _is_table(path: Path) -> bool:
    """Returns whether a file begins like a table of facts, even an invalid one."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return file.readline(_LINE).replace('"', "").startswith(f"{COLUMNS[0]},")


_RULE: Final = "it must be a result that `orch bench` of this release has written"
# By its schema, what a file holds, and the page of it.
_KINDS: Final[dict[object, tuple[TypeAdapter[Any], Callable[[Any], Page]]]] = {
    "orch.bench/2": (TypeAdapter(Result), run_report),
    "orch.sweep/3": (TypeAdapter(Sweep), sweep_report),
    "orch.bench.decode/3": (DOCUMENT, decode_report),
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

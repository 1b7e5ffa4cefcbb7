"""Reads results, and writes reports: `--report` of every run, `orch bench report` and `compare`.

Checks before a run that all of its files can be written.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

from pydantic import Field, TypeAdapter, ValidationError

from orch_sidecar.tools.arguments import Unavailable, file_of
from orch_sidecar.tools.bench.decode.result import DecodeResult
from orch_sidecar.tools.bench.report.decode import decode_report
from orch_sidecar.tools.bench.report.run import compare_report, run_report
from orch_sidecar.tools.bench.report.sweep import sweep_report
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.results.sweep import Sweep
from orch_sidecar.tools.drawing.page import Page
from orch_sidecar.tools.drawing.picture import require
from orch_sidecar.tools.facts.commands.terminal import Commands, add_command
from orch_sidecar.tools.facts.labels.documents import first_problem, parse_json
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.terminal import print_error

_PAGE: Final = ".html"


def add_report(
    group: argparse._ActionsContainer,
    text: str = "write a page with figures and pictures; default: beside the result",
) -> None:
    """Adds `--report [HTML]`: a Path, True for the default one, None for no report."""
    kind = partial(file_of, suffix=_PAGE)
    group.add_argument("--report", nargs="?", const=True, type=kind, metavar="HTML", help=text)


def check_files(options: argparse.Namespace) -> None:
    """Raises ValueError, and OSError, where no result could be written."""
    output, report = options.output or Path("orch-bench.json"), options.report
    page = output.with_suffix(_PAGE) if report is True else report
    wanted = {"output": output, "facts": options.facts, "plot": options.plot, "report": page}
    taken: dict[Path, str] = {}
    for name, path in wanted.items():
        if path is None:
            continue
        option = f"--{name} {path}"
        try:
            files.check_writable(path)
        except OSError as error:
            why = error.strerror or error
            raise ValueError(f"{option}: it cannot be written: {why}") from None
        if (other := taken.setdefault(path.resolve(), option)) != option:
            raise ValueError(f"{option}: it must not be the file of {other}")
    if options.plot is not None or report is not None:
        require(options.plot)
    if options.facts is not None:
        files.check_appendable(options.facts)


_RULE: Final = "it must be a result that `orch bench` of this release has written"
# What a file holds, by its schema.
_FILE: Final[TypeAdapter[Result | Sweep | DecodeResult]] = TypeAdapter(
    Annotated[Result | Sweep | DecodeResult, Field(discriminator="schema_version")]
)
_PAGES: Final[dict[type, Callable[[Any], Page]]] = {
    Result: run_report,
    Sweep: sweep_report,
    DecodeResult: decode_report,
}

_COMPARE: Final = """Compares two runs by their result files, with confidence intervals.

Each figure of both has its 95 % confidence interval, the change has its own, and the conditions in
which they differ are listed. The intervals are of one run each: they do not contain what changes
from run to run. `orch facts compare` compares rows, as those of sweeps."""


def write_report(
    page: Page, wanted: Path | bool | None, beside: Path, out: TextIO | None = None
) -> bool:
    """Writes the report if it is wanted, by default beside a result; returns whether it could."""
    if wanted is None:
        return True
    path = wanted if isinstance(wanted, Path) else beside.with_suffix(_PAGE)
    return written("report", path, lambda: files.write(path, page.html), out)


def written(what: str, path: Path, write: Callable[[], object], out: TextIO | None = None) -> bool:
    """Writes a file, and says so (`out`: not on stdout), or why not; returns whether that
    succeeded."""
    try:
        write()
    except (OSError, ValueError, Unavailable) as error:
        print_error(f"no {what}: {path}: {error}")
        return False
    print(f"{what}: {path}", file=out)
    return True


def add_commands(commands: Commands) -> None:
    """Adds `report` and `compare` to the result of `add_subparsers`."""
    each = add_command(commands, "report", _report, "Makes the report of an earlier result.")
    each.add_argument("result", type=Path, metavar="JSON", help="the result of a run or a sweep")
    kind = partial(file_of, suffix=_PAGE)
    each.add_argument("--output", type=kind, metavar="HTML", help="default: beside the result")
    each = add_command(commands, "compare", _compare, _COMPARE)
    each.add_argument("before", type=Path, metavar="A.json")
    each.add_argument("after", type=Path, metavar="B.json")
    add_report(each, "write a page, with their distributions; default: compare.html")


def _report(options: argparse.Namespace) -> int:
    found = _read(options.result)
    page = _PAGES[type(found)](found)
    return 0 if write_report(page, options.output or True, options.result) else 2


def _compare(options: argparse.Namespace) -> int:
    before, after = _read(options.before), _read(options.after)
    if not isinstance(before, Result) or not isinstance(after, Result):
        raise ValueError("only two runs can be compared; of sweeps, `orch facts compare` the rows")
    page = compare_report(before, after)
    print(page.plain)
    return 0 if write_report(page, options.report, Path("compare")) else 2


def _read(path: Path) -> Result | Sweep | DecodeResult:
    """Returns a result. Raises OSError and ValueError."""
    try:
        document = parse_json(path.read_bytes(), "")
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}): {_RULE}") from error
    try:
        return _FILE.validate_python(document)
    except ValidationError as error:
        raise ValueError(f"{path}: {first_problem(error)}: {_RULE}") from error

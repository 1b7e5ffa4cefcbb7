"""Writes what was measured: the result, rows with their evidence, a plot and the report.

Reads results for `orch bench report` and `compare`, and checks before a run that all of its files
can be written.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

from pydantic import Field, TypeAdapter

from orch_sidecar.tools.arguments import Unavailable, file_of
from orch_sidecar.tools.bench.decode.result import DecodeResult
from orch_sidecar.tools.bench.report.decode import decode_report
from orch_sidecar.tools.bench.report.run import compare_report, run_report
from orch_sidecar.tools.bench.report.sweep import sweep_charts, sweep_report, sweep_title
from orch_sidecar.tools.bench.results.result import Result, row_of
from orch_sidecar.tools.bench.results.sweep import Sweep
from orch_sidecar.tools.drawing.page import Page
from orch_sidecar.tools.drawing.picture import drawn, require
from orch_sidecar.tools.facts.commands.terminal import Commands, add_command
from orch_sidecar.tools.facts.labels.documents import named, parse_json
from orch_sidecar.tools.facts.signing.files import SUFFIX, digest, evidence_of
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.terminal import print_error

_PAGE: Final = ".html"


def add_report(
    group: argparse._ActionsContainer,
    text: str = "write a page with figures and pictures; default: beside the result",
    default: Path | bool = True,
) -> None:
    """Adds `--report [HTML]`: a Path, True for one beside the result, None for no report."""
    kind = file_of(_PAGE)
    group.add_argument("--report", nargs="?", const=default, type=kind, metavar="HTML", help=text)


def _page_of(wanted: Path | bool | None, beside: Path) -> Path | None:
    """Returns the file of a report, by default beside a result; None where it is not wanted."""
    return beside.with_suffix(_PAGE) if wanted is True else wanted or None


def check_files(options: argparse.Namespace) -> None:
    """Raises ValueError, and OSError, where no result could be written."""
    output = options.output or Path("orch-bench.json")
    page = _page_of(options.report, output)
    wanted = {"output": output, "facts": options.facts, "plot": options.plot, "report": page}
    taken: dict[Path, str] = {}
    for name, path in wanted.items():
        if path is None:
            continue
        try:
            files.check_writable(path)
        except OSError as error:
            why = error.strerror or error
            raise ValueError(f"--{name} {path}: it cannot be written: {why}") from None
        if (other := taken.setdefault(path.resolve(), name)) != name:
            raise ValueError(f"--{name} {path}: it must not be the file of --{other}")
    if options.plot is not None or page is not None:
        require()
    if options.facts is not None:
        files.check_appendable(options.facts)


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


def report(found: Result | Sweep, options: argparse.Namespace) -> int:
    """Prints and writes what was measured; returns the exit code.

    One file that cannot be written costs none of the others.
    """
    page, swept = _PAGES[type(found)](found), isinstance(found, Sweep)
    results = found.results if isinstance(found, Sweep) else [found]
    print(page.plain)
    output = options.output or Path(f"orch-{'sweep' if swept else 'bench'}-{results[0].id}.json")
    text = json.dumps(found.model_dump(mode="json"), separators=(",", ":"), allow_nan=False)
    done = [written("result", output, lambda: files.write(output, f"{text}\n"))]
    for result in results if options.facts is not None else ():
        which = f", concurrency {result.scenario.clients}" if swept else ""
        added = written(f"row{which}", options.facts, partial(add_row, result, options.facts))
        done += [] if swept else [added]  # one client of a sweep makes no row
        if added and (missing := result.evidence.missing):
            print(f"  without evidence: {missing}")
    if isinstance(found, Sweep) and options.plot is not None and found.points:
        picture = drawn(options.plot.suffix, sweep_title(found), sweep_charts(found))
        done.append(written("plot", options.plot, lambda: files.write(options.plot, picture)))
    done.append(write_report(page, _page_of(options.report, output)))
    return 0 if all(done) and found.is_sound else 1


def add_row(result: Result, facts: Path) -> None:
    """Appends the row of a result to a table, and notes in it the evidence, written beside.

    Without evidence there is no such note; a row that no table would take leaves no file. Raises
    OSError, Unavailable and ValueError.
    """
    row, signed = row_of(result), result.evidence.signed
    if signed is not None:
        # The signed part is in the evidence itself, and unsigned documents prove nothing.
        measured = result.model_dump(mode="json", exclude={"evidence", "capabilities"})
        content, row = evidence_of(signed, row, measured)
        files.write(facts.resolve().parent / f"{digest(content)}{SUFFIX}", content)
    files.append(facts, [row])


def write_report(page: Page, path: Path | None, out: TextIO | None = None) -> bool:
    """Writes the report if it is wanted; returns whether it could."""
    return path is None or written("report", path, lambda: files.write(path, page.html), out)


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
    kind = file_of(_PAGE)
    each.add_argument("--output", type=kind, metavar="HTML", help="default: beside the result")
    each = add_command(commands, "compare", _compare, _COMPARE)
    each.add_argument("before", type=Path, metavar="A.json")
    each.add_argument("after", type=Path, metavar="B.json")
    text = "write a page, with their distributions; default: compare.html"
    add_report(each, text, Path("compare.html"))


def _report(options: argparse.Namespace) -> int:
    found = _read(options.result)
    page = _PAGES[type(found)](found)
    return 0 if write_report(page, options.output or options.result.with_suffix(_PAGE)) else 2


def _compare(options: argparse.Namespace) -> int:
    before, after = _read(options.before), _read(options.after)
    if not isinstance(before, Result) or not isinstance(after, Result):
        raise ValueError("only two runs can be compared; of sweeps, `orch facts compare` the rows")
    page = compare_report(before, after)
    print(page.plain)
    return 0 if write_report(page, options.report) else 2


def _read(path: Path) -> Result | Sweep | DecodeResult:
    """Returns a result. Raises OSError and ValueError."""
    with named(f"{path}: not a result that `orch bench` of this release wrote: "):
        return _FILE.validate_python(parse_json(path.read_bytes(), "not JSON: "))

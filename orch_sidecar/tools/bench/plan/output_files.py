"""The output files of a run: the option of its report, and checks that all can be written."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from orch_sidecar.tools.bench.plan.options import InvalidOptions
from orch_sidecar.tools.drawing.picture import require
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

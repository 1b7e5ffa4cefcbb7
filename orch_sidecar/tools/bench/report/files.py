"""Reads result files for reports, by their schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from orch_sidecar.tools.bench.decode.report import SCHEMA as DECODE
from orch_sidecar.tools.bench.report.compare import compare_report, compare_sweeps_report
from orch_sidecar.tools.bench.report.decode import decode_report
from orch_sidecar.tools.bench.report.run import run_report
from orch_sidecar.tools.bench.report.sweep import sweep_report
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.results.sweep import Sweep
from orch_sidecar.tools.drawing.page import Page

Report = Result | Sweep | Mapping[str, Any]

_RULE: Final = "it must be a result that `orch bench` of this release has written"


class UnreadableResult(ValueError):
    """A file that is no result; the message names the file, what is wrong, and the rule."""


def read(path: Path) -> Report:
    """Reads a result: of a run, of a sweep, or the document of `decode`.

    Raises UnreadableResult and OSError.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UnreadableResult(f"{path}: not JSON ({error}): {_RULE}") from error
    schema = None
    if isinstance(document, dict):
        schema = document.get("schema_version", document.get("schema"))
    try:
        if schema == "orch.bench/1":
            return Result.model_validate(document)
        if schema == "orch.sweep/1":
            found = Sweep.model_validate(document)
            if not found.results:
                raise UnreadableResult(f"{path}: results: there is none: {_RULE}")
            return found
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UnreadableResult(f"{path}: {place}: {first['msg']}: {_RULE}") from error
    if schema == DECODE and isinstance(document, dict):
        return document
    raise UnreadableResult(f"{path}: its schema is {str(schema)[:80]!r}: {_RULE}")


def report_of(result: Report) -> Page:
    """Returns the page of a result. Raises ValueError."""
    if isinstance(result, Result):
        return run_report(result)
    return sweep_report(result) if isinstance(result, Sweep) else decode_report(result)


def compared(before: Report, after: Report) -> Page:
    """Compares two results of one kind. Raises ValueError for results that cannot be compared."""
    if isinstance(before, Result) and isinstance(after, Result):
        return compare_report(before, after)
    if isinstance(before, Sweep) and isinstance(after, Sweep):
        return compare_sweeps_report(before, after)
    raise ValueError(
        "only two runs, or two sweeps, can be compared: results of different kinds, and those of "
        "`orch bench decode`, cannot"
    )

"""Writes the evidence of a row beside the table that the row is for."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.facts.signing.evidence_file import SUFFIX, digest, evidence_of
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.facts.tables.check import invalid_fields
from orch_sidecar.tools.facts.tables.row import Row

# What the engine signed is in the evidence itself, and its unsigned documents prove nothing.
_NOT_IN_EVIDENCE: Final = {"evidence", "capabilities"}


def with_evidence(row: Row, result: Result, facts: Path) -> Row:
    """Writes the evidence of a result, and returns the row with the note that names it.

    A result without evidence leaves the row as it is, and so does a row that no table would take.
    Raises OSError.
    """
    if result.evidence.signed is None or invalid_fields(row):
        return row
    measured = result.model_dump(mode="json", exclude=_NOT_IN_EVIDENCE)
    content, named = evidence_of(result.evidence.signed, row, measured)
    files.write(facts.resolve().parent / f"{digest(content)}{SUFFIX}", content)
    return named

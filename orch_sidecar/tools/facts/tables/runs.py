"""The run that a row comes from, by its source tag, and what it states about the label.

Pure. A run has one label: rows of one run under two labels contradict each other, in one table or
in several. Other source tags, of a vendor's page for instance, name no run: one source may have
figures of several runs.
"""

from __future__ import annotations

import re
from typing import Final

from orch_sidecar.tools.facts.tables.row import Label, Row, parse_notes

BENCH: Final = "orch-bench:"
TRACES: Final = ("jaeger:", "otlp:")

# The id of a run of `orch bench`: its start, its label and six random digits.
_BENCH_ID: Final = re.compile(
    rf"(?<![0-9A-Za-z])[0-9]{{8}}T[0-9]{{6}}Z-({'|'.join(Label)})-[0-9a-f]{{6}}(?![0-9A-Za-z])"
)
# A file of another tool: its name may change, its content does not. Several runs are numbered.
_IMPORT: Final = re.compile(r" (sha256:[0-9a-f]{12,64}(?:#[0-9]+)?)\Z")


def run_of(source_tag: str) -> str | None:
    """Returns the run that a source tag names, None for a tag that names none.

    Equal for the rows that `orch bench` and the traces make of one run.
    """
    bench = _BENCH_ID.search(source_tag)
    if bench is not None:
        return bench[0]
    imported = _IMPORT.search(source_tag)
    if imported is not None:
        return imported[1]
    return source_tag if source_tag.startswith((BENCH, *TRACES)) else None


def label_in(text: str) -> Label | None:
    """Returns the label of the run of `orch bench` that a text names; None where it names none."""
    bench = _BENCH_ID.search(text)
    return None if bench is None else Label(bench[1])


def makes_one_row(source_tag: str) -> bool:
    """Returns whether a tag names a run of `orch bench`, which measures one engine once."""
    return source_tag.startswith(BENCH)


def label_of_run(row: Row) -> Label | None:
    """Returns the label that a row states about its run: its own, or the one that it claims."""
    if row.measurement_type is not Label.TO_BE_CONFIRMED:
        return row.measurement_type
    claim = parse_notes(row.scenario_notes).get("claim", "none")
    return Label(claim) if claim in set(Label) - {Label.TO_BE_CONFIRMED} else None

"""The run that a row comes from, by its source tag, and what it states about the label.

Pure. A run has one label: rows of one run under two labels contradict each other, in one table or
in several. Other source tags, of a vendor's page for instance, name no run: one source may have
figures of several runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from orch_sidecar.tools.facts.tables.agreement.load import Finding
from orch_sidecar.tools.facts.tables.notes import BATCH_MAX, BATCH_MEAN
from orch_sidecar.tools.facts.tables.row import Label, Row, parse_notes

_BENCH: Final = "orch-bench:"
_TRACES: Final = ("jaeger:", "otlp:")

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
    return source_tag if source_tag.startswith((_BENCH, *_TRACES)) else None


def makes_one_row(source_tag: str) -> bool:
    """Returns whether a tag names a run of `orch bench`, which measures one engine once."""
    return source_tag.startswith(_BENCH)


def label_of_run(row: Row) -> Label | None:
    """Returns the label that a row states about its run: its own, or the one that it claims."""
    if row.measurement_type is not Label.TO_BE_CONFIRMED:
        return row.measurement_type
    claim = parse_notes(row.scenario_notes).get("claim", "none")
    return Label(claim) if claim in set(Label) - {Label.TO_BE_CONFIRMED} else None


def tag_contradiction(source_tag: str, label: Label, notes: Mapping[str, str]) -> str | None:
    """Returns the rule that a source tag violates, None if there is none.

    The id of a run names its label, and the tag of a traced scenario ends with its id.
    """
    bench = _BENCH_ID.search(source_tag)
    if bench is not None:
        stated = label.value
        if label is Label.TO_BE_CONFIRMED:
            stated = notes.get("claim", bench[1])
        if bench[1] != stated:
            what = "claims" if label is Label.TO_BE_CONFIRMED else "is labelled"
            return f"names a run of {bench[1]}, but the row {what} {stated}"
    scenario = notes.get("scenario")
    if scenario is None or not source_tag.startswith(_TRACES):
        return None
    if re.sub(r"#[0-9]+\Z", "", source_tag).endswith(f"/{scenario}"):
        return None
    return f"must end with the note scenario={scenario}"


def missing_notes(source_tag: str, label: Label, notes: Mapping[str, str]) -> Iterator[Finding]:
    """Yields a rule for the notes that each row of a run has, and this one lacks.

    Without them nothing could be compared with its figures.
    """
    if run_of(source_tag) is None:
        return
    needed = ["requests", "window_s"]
    if label is not Label.TO_BE_CONFIRMED:
        needed += [BATCH_MEAN, BATCH_MAX]
    missing = [name for name in needed if name not in notes]
    if missing:
        yield "", f"the notes {', '.join(missing)} are missing, which each row of a run has"


def scenario_contradictions(label: Label, notes: Mapping[str, str]) -> Iterator[Finding]:
    """Yields the note with the id of a scenario that names another label."""
    bench = _BENCH_ID.search(notes.get("scenario", ""))
    if bench is not None and label not in (bench[1], Label.TO_BE_CONFIRMED):
        rule = f"names a run of {bench[1]}, but the row is labelled {label}"
        yield f"scenario={notes['scenario']}", rule


def tool_contradictions(source_tag: str, notes: Mapping[str, str]) -> Iterator[Finding]:
    """Yields the note with the tool where the source tag is that of another one."""
    tool = notes.get("tool")
    if tool is not None and (tool == "orch bench") != source_tag.startswith(_BENCH):
        rule = f"contradicts the source tag {source_tag}: those of orch bench begin with {_BENCH}"
        yield f"tool={tool}", rule

"""Rules for each field of a fact, and for fields that must agree.

Pure. Knows values by the names of their columns, and nothing about files and lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from orch_sidecar.tools.facts.tables.agreement import engine, figures, load, publication, runs
from orch_sidecar.tools.facts.tables.forms import formula_rule, invisible_rule
from orch_sidecar.tools.facts.tables.note_forms import violated_form
from orch_sidecar.tools.facts.tables.row import TABLE, Label, parse_notes

# Labels of older files. Neither determines the batching: an aggregate was measured online or
# offline, and the stream of one user may have run beside others.
LEGACY_LABELS: Final = ("aggregate", "per_user_stream")

# The values that the note `batching` can have in rows of each label.
BATCHING: Final[Mapping[Label, tuple[str, ...]]] = {
    Label.SINGLE_STREAM: ("off",),
    Label.BATCHED_ONLINE: ("on",),
    Label.OFFLINE: ("on",),
    Label.TO_BE_CONFIRMED: ("on", "off", "unknown"),
}

_FORMS: Final = {column.name: column.form for column in TABLE}

# Notes in milliseconds that comparisons use.
TTFT_P50_NOTE: Final = "ttft_p50_ms"
TTFT_P95_NOTE: Final = "ttft_p95_ms"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Fields that are valid individually but contradict each other; reported at one of them."""

    column: str
    value: str
    rule: str


def violated_rule(column: str, value: str) -> str | None:
    """Returns the rule that a field violates by itself, None for a valid field."""
    rule = invisible_rule(value)
    if rule is None and column == "scenario_notes":
        rule = _notes_rule(value)
    elif rule is None and column == "measurement_type" and value in LEGACY_LABELS:
        rule = (
            "is a label of older files, which does not state how the engine was batching; "
            f"check --migrate-legacy changes it to {Label.TO_BE_CONFIRMED}"
        )
    elif rule is None:
        rule = _FORMS[column].violated_rule(value)
    if rule is None and _FORMS[column].base == "string":
        rule = formula_rule(value)
    return rule


def _notes_rule(value: str) -> str | None:
    if "\n" in value or "\r" in value:
        return "must be one line, without a line break"
    try:
        notes = parse_notes(value)
    except ValueError as error:
        return f"must be notes such as input_tokens=512; output_tokens=64; batching=on: {error}"
    return _FORMS["scenario_notes"].violated_rule(value) or violated_form(notes)


def is_plausible(column: str, value: str) -> bool:
    """Returns whether a value, valid or not, looks as if it was meant for this column."""
    if column == "scenario_notes":
        return value != ""
    is_legacy = column == "measurement_type" and value in LEGACY_LABELS
    return is_legacy or violated_rule(column, value) is None


def contradictions(valid: Mapping[str, str]) -> Iterator[Contradiction]:
    """Yields the contradictions among those fields of one row that are valid individually.

    Fields with a fault of their own are not in `valid`, and nothing is compared with them.
    """
    label = Label(valid["measurement_type"]) if "measurement_type" in valid else None
    notes = parse_notes(valid["scenario_notes"]) if "scenario_notes" in valid else {}
    if "batch" in valid:
        yield from _located(load.batch_contradictions(label, int(valid["batch"]), notes))
    if not notes:
        return
    for name in ("input_tokens", "output_tokens"):
        if name in valid and notes[name] != valid[name]:
            rule = f"must equal the column {name}, {valid[name]}"
            yield Contradiction("scenario_notes", f"{name}={notes[name]}", rule)
    allowed = ("on", "off", "unknown") if label is None else BATCHING[label]
    if notes["batching"] not in allowed:
        row = "" if label is None else f" in a row labelled {label}"
        rule = f"must be {' or '.join(allowed)}{row}"
        yield Contradiction("scenario_notes", f"batching={notes['batching']}", rule)
    yield from _located(_of_notes(label, valid, notes))
    yield from _of_columns(label, valid, notes)


def _of_columns(
    label: Label | None, valid: Mapping[str, str], notes: Mapping[str, str]
) -> Iterator[Contradiction]:
    """Yields the columns that contradict the notes."""
    rules: dict[str, str | None] = {}
    if "throughput_tokens_per_sec" in valid and "output_tokens" in valid:
        throughput, output_tokens = valid["throughput_tokens_per_sec"], int(valid["output_tokens"])
        rules["throughput_tokens_per_sec"] = figures.throughput_rule(
            throughput, output_tokens, notes
        )
    if "gpu" in valid and "gpu_count" in valid:
        rules["gpu_count"] = engine.gpu_count_rule(valid["gpu"], int(valid["gpu_count"]))
    if label is not None and "source_tag" in valid:
        rules["source_tag"] = runs.tag_contradiction(valid["source_tag"], label, notes)
    for column, rule in rules.items():
        if rule is not None:
            yield Contradiction(column, valid[column], rule)


def _of_notes(
    label: Label | None, valid: Mapping[str, str], notes: Mapping[str, str]
) -> Iterator[load.Finding]:
    """Yields the notes that contradict each other, or the label, or a column."""
    yield from load.arrivals_contradictions(notes)
    if label is not None:
        yield from load.label_contradictions(label, notes)
        yield from publication.contradictions(label, notes)
        yield from runs.scenario_contradictions(label, notes)
    yield from figures.percentile_contradictions(notes)
    gpu_count = int(valid["gpu_count"]) if "gpu_count" in valid else None
    yield from engine.engine_contradictions(gpu_count, notes)
    if "model_id" in valid:
        yield from engine.served_as_contradictions(valid["model_id"], notes)
    if "precision" in valid:
        yield from engine.precision_contradictions(valid["precision"], notes)
    if "source_tag" in valid:
        yield from runs.tool_contradictions(valid["source_tag"], notes)
        if label is not None:
            yield from runs.missing_notes(valid["source_tag"], label, notes)


def _located(found: Iterable[load.Finding]) -> Iterator[Contradiction]:
    """Locates findings about the column `batch` there, all others in the notes."""
    for stated, rule in found:
        name, _, value = stated.partition("=")
        if name == "batch":
            yield Contradiction("batch", value, rule)
        else:
            yield Contradiction("scenario_notes", stated, rule)

"""Rules for each field of a fact, and for fields that must agree.

Pure. Knows values by the names of their columns, and nothing about files and lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def contradictions(values: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yields the contradictions of a row whose fields are valid individually.

    Each with the column at which it is reported, what that column or a note in it states, and the
    rule.
    """
    label, notes = Label(values["measurement_type"]), parse_notes(values["scenario_notes"])
    for stated, rule in _findings(values, label, notes):
        name, _, value = stated.partition("=")
        yield ("batch", value, rule) if name == "batch" else ("scenario_notes", stated, rule)
    throughput, output_tokens = values["throughput_tokens_per_sec"], int(values["output_tokens"])
    of_columns = {
        "throughput_tokens_per_sec": figures.throughput_rule(throughput, output_tokens, notes),
        "gpu_count": engine.gpu_count_rule(values["gpu"], int(values["gpu_count"])),
        "source_tag": runs.tag_contradiction(values["source_tag"], label, notes),
    }
    for column, broken in of_columns.items():
        if broken is not None:
            yield column, values[column], broken


def _findings(
    values: Mapping[str, str], label: Label, notes: Mapping[str, str]
) -> Iterator[load.Finding]:
    """Yields the notes that contradict each other, the label or a column, and the batch."""
    for name in ("input_tokens", "output_tokens"):
        if notes[name] != values[name]:
            yield f"{name}={notes[name]}", f"must equal the column {name}, {values[name]}"
    if notes["batching"] not in BATCHING[label]:
        rule = f"must be {' or '.join(BATCHING[label])} in a row labelled {label}"
        yield f"batching={notes['batching']}", rule
    yield from load.batch_contradictions(label, int(values["batch"]), notes)
    yield from load.arrivals_contradictions(notes)
    yield from load.label_contradictions(label, notes)
    yield from publication.contradictions(label, notes)
    yield from runs.scenario_contradictions(label, notes)
    yield from figures.percentile_contradictions(notes)
    yield from engine.engine_contradictions(int(values["gpu_count"]), notes)
    yield from engine.served_as_contradictions(values["model_id"], notes)
    yield from engine.precision_contradictions(values["precision"], notes)
    yield from runs.tool_contradictions(values["source_tag"], notes)
    yield from runs.missing_notes(values["source_tag"], label, notes)

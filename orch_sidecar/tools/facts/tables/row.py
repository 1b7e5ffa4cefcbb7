"""A fact: one row of `tps_model_gpu.csv`, and the rule for each of its fields and known notes.

Pure. Knows nothing about files and lines. Notes with other names are free text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, NamedTuple, get_type_hints

from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.forms import (
    TEXT,
    THROUGHPUT,
    Form,
    formula_rule,
    invisible_rule,
    matches,
    one_of,
    whole,
)
from orch_sidecar.tools.facts.tables.notes import Arrivals


class Label(StrEnum):
    """How the engine was batching: the values of the column `measurement_type`."""

    SINGLE_STREAM = "single_stream"
    BATCHED_ONLINE = "batched_online"
    OFFLINE = "offline"
    # The batching is unknown: comparisons exclude such rows.
    TO_BE_CONFIRMED = "to_be_confirmed"


# Every row's notes begin with these, in this order.
REQUIRED_NOTES: Final = ("input_tokens", "output_tokens", "batching")
_NOTES: Final = r"\s*" + r"=[^;]*;\s*".join(REQUIRED_NOTES) + r"=[^;]*(;\s*[a-z][a-z0-9_]*=[^;]*)*"


class Column(NamedTuple):
    """What a column has: the form of its values, and what they mean. `identifies`: whether it says
    what was measured, and not what came of it."""

    form: Form
    meaning: str
    identifies: bool = True


_THROUGHPUT: Final = Column(
    THROUGHPUT,
    "Generated tokens of all requests over the window, per second; prompts are not counted.",
    identifies=False,
)
_BATCH: Final = Column(
    whole(1),
    "Mean number of sequences per decode step of the window (the note batch_mean), rounded, at "
    "least 1. In rows to_be_confirmed the largest number of answers that overlapped, in rows of "
    "other sources what these state.",
)
_SCENARIO_NOTES: Final = Column(
    matches(_NOTES, f"notes that begin with {', '.join(REQUIRED_NOTES)}, in this order"),
    "name=value; name=value: lengths and batching, load, latencies, settings of the engine, and "
    "what limits the trust in the figure.",
    identifies=False,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One fact: its fields are the columns, in their order."""

    model_id: Annotated[str, Column(TEXT, "Id of the model, as its engine serves or loaded it.")]
    model_name: Annotated[str, Column(TEXT, "Name of the model, for display.", identifies=False)]
    engine: Annotated[str, Column(TEXT, "Name and version of the engine: vLLM 0.32.0.")]
    precision: Annotated[
        str, Column(TEXT, "Type of the weights: BF16; of a quantized model its method.")
    ]
    gpu: Annotated[str, Column(TEXT, "Accelerator; without one CPU (<model of the processor>).")]
    gpu_count: Annotated[
        int, Column(whole(0), "Accelerators that one copy of the model is spread over.")
    ]
    batch: Annotated[int, _BATCH]
    input_tokens: Annotated[int, Column(whole(0), "Prompt tokens per request; a mean is rounded.")]
    output_tokens: Annotated[
        int, Column(whole(1), "Generated tokens per request; a mean is rounded.")
    ]
    throughput_tokens_per_sec: Annotated[float, _THROUGHPUT]
    measurement_type: Annotated[
        Label, Column(one_of(*Label), "How the engine was batching: the label.")
    ]
    scenario_notes: Annotated[str, _SCENARIO_NOTES]
    source_tag: Annotated[str, Column(TEXT, "Run or file that the figure comes from.")]


_ANNOTATIONS: Final = get_type_hints(Row, include_extras=True)
TYPES: Final = {name: each.__origin__ for name, each in _ANNOTATIONS.items()}
TABLE: Final[Mapping[str, Column]] = {
    name: each.__metadata__[0] for name, each in _ANNOTATIONS.items()
}
COLUMNS: Final = tuple(TABLE)

# The columns that identify a measurement, and with them the notes about the engine's configuration
# (`notes.ENGINE`); the others contain its result.
MEASUREMENT: Final = tuple(name for name, column in TABLE.items() if column.identifies)


class Meaning(NamedTuple):
    """What a label says of a row. `batching`: the note; `profile`: the one of this project that has
    the label (others may have any); `arrivals`: those that can earn it."""

    batching: str
    profile: str
    arrivals: Sequence[Arrivals]


MEANINGS: Final[Mapping[Label, Meaning]] = {
    Label.SINGLE_STREAM: Meaning("off", "home", (Arrivals.ONE_BY_ONE,)),
    Label.BATCHED_ONLINE: Meaning(
        "on", "cloud", [each for each in Arrivals if each is not Arrivals.ONE_BY_ONE]
    ),
    Label.OFFLINE: Meaning("on", "offline", (Arrivals.AT_ONCE, Arrivals.CLOSED_LOOP)),
}
PROFILE_LABELS: Final = {each.profile: label for label, each in MEANINGS.items()}

# Names of columns, none of which follows once more; with all of them it is shorter than 200.
_GIVEN: Final = (
    r"(?=.{0,200}\Z)(?!.*\b(\w+)\b.*\b\1\b)"
    rf"(?:{'|'.join(COLUMNS)})(?:,(?:{'|'.join(COLUMNS)}))*"
)
_NOTE_FORMS: Final[Mapping[str, Form]] = {
    **names.FORMS,
    "claim": one_of("none", *Label),
    names.GIVEN: matches(_GIVEN, "names of columns, each once, separated by commas: engine,gpu"),
}

# The usual spelling of engine names; others are written as the engine reports them.
_ENGINES: Final = {"vllm": "vLLM"}

_KEY: Final = re.compile(r"[a-z][a-z0-9_]*")


def measurement_key(row: Row) -> tuple[object, ...]:
    """Returns what identifies the measurement of a row: its columns and notes.

    Rows with another speculative decoding, quantization or prefix cache are other measurements.
    Raises ValueError for notes that cannot be parsed.
    """
    notes = parse_notes(row.scenario_notes)
    columns = (getattr(row, name) for name in MEASUREMENT)
    return (*columns, *(notes.get(name) for name in names.ENGINE))


def format_engine(name: str, version: str | None) -> str:
    """Formats the column `engine` from an engine's name and, if known, its version."""
    shown = _ENGINES.get(name, name)
    return shown if version is None else f"{shown} {version}"


def is_path(model: str) -> bool:
    """Returns whether a model's name is a path, which means nothing on another machine."""
    return model.startswith(("/", "~", "."))


def last_part(model_id: str) -> str:
    """Returns the default of `model_name`: a model's id without its organization."""
    return model_id.rpartition("/")[2]


def format_notes(notes: Mapping[str, str | int | float]) -> str:
    """Formats the column `scenario_notes`: `key=value; key=value`.

    Raises ValueError for a value with `;` or a line break in it, or a number that is not finite.
    """
    parts = []
    for key, value in notes.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"the note {key}={value} must be a finite number")
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        if any(mark in text for mark in ";\n\r"):
            raise ValueError(f"the note {key}={text!r} must be one line without a semicolon")
        parts.append(f"{key}={text}")
    return "; ".join(parts)


def parse_notes(text: str) -> dict[str, str]:
    """Parses the column `scenario_notes`. Raises ValueError unless it is `key=value` pairs."""
    notes: dict[str, str] = {}
    for part in text.split(";"):
        key, equals, value = part.strip().partition("=")
        if not equals or _KEY.fullmatch(key) is None:
            raise ValueError(f"{part.strip()!r} is not key=value")
        if key in notes:
            raise ValueError(f"the note {key!r} occurs twice")
        notes[key] = value.strip()
    return notes


def violated_rule(column: str, value: str) -> str | None:
    """Returns the rule that a field violates by itself, None for a valid field."""
    form = TABLE[column].form
    if (rule := invisible_rule(value)) is not None:
        return rule
    rule = _notes_rule(value) if column == "scenario_notes" else form.violated_rule(value)
    return rule or (formula_rule(value) if form.base == "string" else None)


def _notes_rule(value: str) -> str | None:
    if "\n" in value or "\r" in value:
        return "must be one line, without a line break"
    try:
        notes = parse_notes(value)
    except ValueError as error:
        return f"must be notes such as input_tokens=512; output_tokens=64; batching=on: {error}"
    stated = (
        (name, text, _NOTE_FORMS[name]) for name, text in notes.items() if name in _NOTE_FORMS
    )
    broken = (
        f"{name}={text} {form.rule}" for name, text, form in stated if form.violated_rule(text)
    )
    return TABLE["scenario_notes"].form.violated_rule(value) or next(broken, None)


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

    A run has one label: rows of one run under two labels contradict each other, in one table or in
    several. Other source tags, of a vendor's page for instance, name no run: one source may have
    figures of several runs.

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

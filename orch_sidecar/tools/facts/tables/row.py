"""A fact: one row of `tps_model_gpu.csv`, and the rule for each of its fields and known notes.

Pure. Knows nothing about files and lines.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, NamedTuple, get_type_hints

from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.notes import (
    SIGNIFICANT_DIGITS,
    TEXT,
    THROUGHPUT,
    Arrivals,
    Form,
    RowNotes,
    one_of,
    whole,
)


class Label(StrEnum):
    """How the engine was batching: the values of the column `measurement_type`."""

    SINGLE_STREAM = "single_stream"
    BATCHED_ONLINE = "batched_online"
    OFFLINE = "offline"
    # The batching is unknown: comparisons exclude such rows.
    TO_BE_CONFIRMED = "to_be_confirmed"


# Every row's notes begin with these, in this order.
REQUIRED_NOTES: Final = ("input_tokens", "output_tokens", "batching")


@dataclass(frozen=True, slots=True)
class Row:
    """One fact: its fields are the columns, in their order, each with the form of its values."""

    model_id: Annotated[str, TEXT]
    model_name: Annotated[str, TEXT]
    engine: Annotated[str, TEXT]
    precision: Annotated[str, TEXT]
    gpu: Annotated[str, TEXT]
    gpu_count: Annotated[int, whole(0)]
    batch: Annotated[int, whole(1)]
    input_tokens: Annotated[int, whole(0)]
    output_tokens: Annotated[int, whole(1)]
    throughput_tokens_per_sec: Annotated[float, THROUGHPUT]
    measurement_type: Annotated[Label, one_of(*Label)]
    scenario_notes: Annotated[str, TEXT]
    source_tag: Annotated[str, TEXT]

    @property
    def is_confirmed(self) -> bool:
        """Whether it is known how the engine was batching."""
        return self.measurement_type is not Label.TO_BE_CONFIRMED

    @property
    def stated_label(self) -> Label | None:
        """The label that it states about its run: its own, or the one that it claims."""
        stated = self.measurement_type if self.is_confirmed else self.notes.get("claim")
        return Label(stated) if stated in set(MEANINGS) else None

    @property
    def measurement(self) -> tuple[object, ...]:
        """What two rows cannot share: their run if it makes one row, else what identifies their
        measurement, its columns and notes."""
        if self.source_tag.startswith(BENCH):
            return (self.source_tag,)
        columns = (getattr(self, name) for name in MEASUREMENT)
        return (*columns, *map(self.notes.get, names.SETTING_NAMES))

    @property
    def notes(self) -> RowNotes:
        """What `scenario_notes` has. Raises ValueError unless it is `key=value` pairs."""
        return parse_notes(self.scenario_notes)


_ANNOTATIONS: Final = get_type_hints(Row, include_extras=True)
TYPES: Final = {name: each.__origin__ for name, each in _ANNOTATIONS.items()}
_FORMS: Final[Mapping[str, Form]] = {
    name: each.__metadata__[0] for name, each in _ANNOTATIONS.items()
}
COLUMNS: Final = tuple(_FORMS)

# The columns that identify a measurement, and with them the notes about the engine's configuration
# (`notes.SETTING_NAMES`); the others contain its result.
_RESULT: Final = ("model_name", "throughput_tokens_per_sec", "scenario_notes")
MEASUREMENT: Final = tuple(name for name in COLUMNS if name not in _RESULT)


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


def format_engine(name: str, version: str | None) -> str:
    """Formats the column `engine` from an engine's name and, if known, its version."""
    shown = "vLLM" if name == "vllm" else name  # others are written as the engine reports them
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
        text = f"{value:.{SIGNIFICANT_DIGITS}g}" if isinstance(value, float) else str(value)
        if any(mark in text for mark in ";\n\r"):
            raise ValueError(f"the note {key}={text!r} must be one line without a semicolon")
        parts.append(f"{key}={text}")
    return "; ".join(parts)


def parse_notes(text: str) -> RowNotes:
    """Parses the column `scenario_notes`. Raises ValueError unless it is `key=value` pairs."""
    notes = RowNotes()
    for part in text.split(";"):
        key, equals, value = part.strip().partition("=")
        if not equals or re.fullmatch("[a-z][a-z0-9_]*", key) is None:
            raise ValueError(f"{part.strip()!r} is not key=value")
        if key in notes:
            raise ValueError(f"the note {key!r} occurs twice")
        notes[key] = value.strip()
    return notes


# Letters and marks without a shape: `Default_Ignorable_Code_Point` of Unicode, as far as Python
# calls them printable, and the blank pattern of Braille.
_WITHOUT_SHAPE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)

# OWASP, CSV Injection: a cell is a formula if it begins with one of these, also as full-width
# characters, after white space or an opening quote. A spreadsheet whose separator is the semicolon
# begins a cell after each of them.
_FORMULA: Final = re.compile(r"""(?:\A|;)[\s"']*([=+\-@\uff1d\uff0b\uff0d\uff20])""")

_CONTROL_NAMES: Final = {"\0": "NULL", "\t": "CHARACTER TABULATION", "\x1b": "ESCAPE"}


def invisible_rule(value: str) -> str | None:
    """Returns the rule that a cell's characters violate, with the first of them; None if none. What
    a reader cannot see must not distinguish two values; line breaks have a rule of their own."""
    for index, character in enumerate(value):
        visible = character.isprintable() and not _WITHOUT_SHAPE.match(character)
        if not visible and character not in "\n\r":
            return f"must not contain {_character(value, index)}"
    return None


def formula_rule(value: str) -> str | None:
    """Returns the rule that a cell violates if a spreadsheet would execute it, None otherwise."""
    if (found := _FORMULA.search(value)) is None:
        return None
    where = "begin with" if found.start() == 0 else "have after a semicolon"
    character = _character(value, found.start(1))
    return f"must not {where} {character}: a spreadsheet executes it as a formula"


def _character(cell: str, index: int) -> str:
    default = _CONTROL_NAMES.get(cell[index], "a character without a name")
    name = unicodedata.name(cell[index], default)
    return f"U+{ord(cell[index]):04X} {name} (character {index + 1} of the cell)"


def violated_rule(column: str, value: str) -> str | None:
    """Returns the rule that a field violates by itself, None for a valid field."""
    by_form = _notes_rule if column == "scenario_notes" else _FORMS[column].violated_rule
    return invisible_rule(value) or by_form(value) or formula_rule(value)


def _notes_rule(value: str) -> str | None:
    if "\n" in value or "\r" in value:
        return "must be one line, without a line break"
    try:
        notes = parse_notes(value)
    except ValueError as error:
        return f"must be notes such as input_tokens=512; output_tokens=64; batching=on: {error}"
    if tuple(notes)[: len(REQUIRED_NOTES)] != REQUIRED_NOTES:
        return f"must be notes that begin with {', '.join(REQUIRED_NOTES)}, in this order"
    for name, text in notes.items():
        if name in names.FORMS and (rule := names.FORMS[name].violated_rule(text)) is not None:
            return f"{name}={text} {rule}"
    return None


BENCH: Final = "orch-bench:"  # of a run, which measures one engine once: it makes one row
TRACES: Final = ("jaeger:", "otlp:")

# The id of a run of `orch bench`: its start, its label and six random digits.
_BENCH_ID: Final = re.compile(
    rf"(?<![0-9A-Za-z])[0-9]{{8}}T[0-9]{{6}}Z-({'|'.join(Label)})-[0-9a-f]{{6}}(?![0-9A-Za-z])"
)
# A file of another tool: its name may change, its content does not. Several runs are numbered.
_IMPORT: Final = re.compile(r"(?<= )sha256:[0-9a-f]{12,64}(?:#[0-9]+)?\Z")


def run_of(source_tag: str) -> str | None:
    """Returns the run that a source tag names, None for a tag that names none.

    A run has one label: rows of one run under two labels contradict each other, in one table or in
    several. Other source tags, of a vendor's page for instance, name no run: one source may have
    figures of several runs.

    Equal for the rows that `orch bench` and the traces make of one run.
    """
    found = _BENCH_ID.search(source_tag) or _IMPORT.search(source_tag)
    named = source_tag if source_tag.startswith((BENCH, *TRACES)) else None
    return named if found is None else found[0]


def label_in(text: str) -> Label | None:
    """Returns the label of the run of `orch bench` that a text names; None where it names none."""
    bench = _BENCH_ID.search(text)
    return None if bench is None else Label(bench[1])

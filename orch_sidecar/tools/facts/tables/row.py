"""A fact: one row of `tps_model_gpu.csv`.

Pure. Knows the columns and the form of the notes, and nothing about files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from orch_sidecar.tools.facts.tables.forms import TEXT, THROUGHPUT, Form, matches, one_of, whole
from orch_sidecar.tools.facts.tables.notes import ENGINE


class Label(StrEnum):
    """How the engine was batching: the values of the column `measurement_type`."""

    SINGLE_STREAM = "single_stream"
    BATCHED_ONLINE = "batched_online"
    OFFLINE = "offline"
    # The batching is unknown: comparisons exclude such rows.
    TO_BE_CONFIRMED = "to_be_confirmed"


# Every row's notes begin with these, in this order.
REQUIRED_NOTES: Final = ("input_tokens", "output_tokens", "batching")
_NOTES: Final = re.compile(
    r"\s*" + r"=[^;]*;\s*".join(REQUIRED_NOTES) + r"=[^;]*(;\s*[a-z][a-z0-9_]*=[^;]*)*"
)


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `identifies`: whether it says what was measured, and not what came of it."""

    name: str
    form: Form
    identifies: bool
    meaning: str


TABLE: Final = (
    Column("model_id", TEXT, True, "Id of the model, as its engine serves or loaded it."),
    Column("model_name", TEXT, False, "Name of the model, for display."),
    Column("engine", TEXT, True, "Name and version of the engine: vLLM 0.32.0."),
    Column("precision", TEXT, True, "Type of the weights: BF16; of a quantized model its method."),
    Column("gpu", TEXT, True, "Accelerator; without one CPU (<model of the processor>)."),
    Column("gpu_count", whole(0), True, "Accelerators that one copy of the model is spread over."),
    Column(
        "batch",
        whole(1),
        True,
        "Mean number of sequences per decode step of the window (the note batch_mean), rounded, at "
        "least 1. In rows to_be_confirmed the largest number of answers that overlapped, in rows "
        "of other sources what these state.",
    ),
    Column("input_tokens", whole(0), True, "Prompt tokens per request; a mean is rounded."),
    Column("output_tokens", whole(1), True, "Generated tokens per request; a mean is rounded."),
    Column(
        "throughput_tokens_per_sec",
        THROUGHPUT,
        False,
        "Generated tokens of all requests over the window, per second; prompts are not counted.",
    ),
    Column("measurement_type", one_of(*Label), True, "How the engine was batching: the label."),
    Column(
        "scenario_notes",
        matches(_NOTES, f"notes that begin with {', '.join(REQUIRED_NOTES)}, in this order"),
        False,
        "name=value; name=value: lengths and batching, load, latencies, settings of the engine, "
        "and what limits the trust in the figure.",
    ),
    Column("source_tag", TEXT, True, "Run or file that the figure comes from."),
)
COLUMNS: Final = tuple(column.name for column in TABLE)

# The columns that identify a measurement, and with them the notes about the engine's configuration
# (`notes.ENGINE`); the others contain its result.
MEASUREMENT: Final = tuple(column.name for column in TABLE if column.identifies)

# The usual spelling of engine names; others are written as the engine reports them.
_ENGINES: Final = {"vllm": "vLLM"}

_KEY: Final = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Row:
    """One fact: a value for each column of `TABLE`, which says what it is."""

    model_id: str
    model_name: str
    engine: str
    precision: str
    gpu: str
    gpu_count: int
    batch: int
    input_tokens: int
    output_tokens: int
    throughput_tokens_per_sec: float
    measurement_type: Label
    scenario_notes: str
    source_tag: str


def measurement_key(row: Row) -> tuple[object, ...]:
    """Returns what identifies the measurement of a row: its columns and notes.

    Rows with another speculative decoding, quantization or prefix cache are other measurements.
    Raises ValueError for notes that cannot be parsed.
    """
    notes = parse_notes(row.scenario_notes)
    columns = (getattr(row, name) for name in MEASUREMENT)
    return (*columns, *(notes.get(name) for name in ENGINE))


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

    Raises ValueError for a key that is not a name, a value with `;` or a line break in it, or a
    number that is not finite.
    """
    parts = []
    for key, value in notes.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"the note {key}={value} must be a finite number")
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        if _KEY.fullmatch(key) is None:
            raise ValueError(f"the note name {key!r} must be lower case letters, digits and _")
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

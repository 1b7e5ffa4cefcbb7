"""A fact: one row of `tps_model_gpu.csv`, and the rule for each of its fields and known notes.

Pure. Knows nothing about files and lines. Notes with other names are free text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.forms import (
    ABOVE_0,
    TEXT,
    THROUGHPUT,
    Form,
    formula_rule,
    invisible_rule,
    matches,
    number,
    one_of,
    whole,
)
from orch_sidecar.tools.facts.tables.notes import TRACE_DIGITS, Arrivals


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

_FORMS: Final = {column.name: column.form for column in TABLE}

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

PERCENTILES: Final = (50, 90, 95, 99)
TIMES: Final = ("ttft", "tpot", "latency")

_TRACE: Final = re.compile(rf"[0-9a-f]{{{TRACE_DIGITS}}}")
_ARRIVALS: Final = re.compile(rf"{'|'.join(Arrivals)}|{Arrivals.TRACE}:{_TRACE.pattern}")
_WINDOW: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?:(?:[0-9]+(?:\.[0-9]+)?)?")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
# Names of columns, none of which follows once more; with all of them it is shorter than 200.
_GIVEN: Final = re.compile(
    r"(?=.{0,200}\Z)(?!.*\b(\w+)\b.*\b\1\b)"
    rf"(?:{'|'.join(COLUMNS)})(?:,(?:{'|'.join(COLUMNS)}))*"
)

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


def time_note(name: str, percentile: int) -> str:
    """Returns the name of the note with a percentile of a time, in milliseconds."""
    return f"{name}_p{percentile}_ms"


def early_note(name: str, percentile: int) -> str:
    """Returns the name of the note with MLPerf's early-stopping estimate of a percentile."""
    return f"{name}_p{percentile}_early_ms"


_NOTE_FORMS: Final[Mapping[str, Form]] = {
    "arrivals": matches(
        _ARRIVALS, f"one of {', '.join(Arrivals)}, or trace: and {TRACE_DIGITS} digits of its hash"
    ),
    names.TRACE_WINDOW: matches(_WINDOW, "two times in seconds: 0:300, or 300:"),
    names.TRACE_TIME: ABOVE_0,
    names.TRACE_LENGTHS: ABOVE_0,
    names.BULK_CLIENTS: whole(1),
    names.BULK_TRACE: matches(_TRACE, f"{TRACE_DIGITS} digits of its hash"),
    names.LATENCY_OF: one_of("interactive"),
    "rate_per_s": ABOVE_0,
    "burstiness": ABOVE_0,
    "at_once": whole(1),
    "requests": whole(1),
    "window_s": number("of seconds, ", 0),
    **dict.fromkeys(("refused", "failed", "cancelled", "counted_by_events"), whole(0)),
    "goodput_share": number("", 0, 1),
    **dict.fromkeys(names.SLOS, ABOVE_0),
    names.BATCH_MEAN: number("", 1),
    names.BATCH_MAX: whole(1),
    names.BATCH_REQUESTS: number("", 1),
    "batch_is": one_of("overlap"),
    "claim": one_of("none", *Label),
    **{each.name: each.form for each in names.SETTINGS if each.form is not None},
    names.PREFIX_HIT_RATIO: number("", 0, 1),
    "acceptance_length": number("", 1),
    names.GIVEN: matches(_GIVEN, "names of columns, each once, separated by commas: engine,gpu"),
    names.PRELIMINARY: one_of("yes"),
    names.CUT: one_of("before", "after", "before,after"),
    names.CLIENT_BOTTLENECK: one_of("yes"),
    names.STATES: one_of("unsigned"),
    names.EVIDENCE: matches(_DIGEST, "sha256: and 64 hexadecimal digits"),
    **{
        note(name, percentile): number("of milliseconds, ", 0)
        for note in (time_note, early_note)
        for name in TIMES
        for percentile in PERCENTILES
    },
}


def violated_rule(column: str, value: str) -> str | None:
    """Returns the rule that a field violates by itself, None for a valid field."""
    form = _FORMS[column]
    if (rule := invisible_rule(value)) is not None:
        return rule
    if column == "measurement_type" and value in LEGACY_LABELS:
        return (
            "is a label of older files, which does not state how the engine was batching; "
            f"check --migrate-legacy changes it to {Label.TO_BE_CONFIRMED}"
        )
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
    return _FORMS["scenario_notes"].violated_rule(value) or next(broken, None)


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

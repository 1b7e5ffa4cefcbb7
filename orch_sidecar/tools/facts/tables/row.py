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

from orch_sidecar.tools.facts.tables.notes import CONDITIONS, DATA_PARALLEL, LOADED


class Label(StrEnum):
    """How the engine was batching: the values of the column `measurement_type`."""

    SINGLE_STREAM = "single_stream"
    BATCHED_ONLINE = "batched_online"
    OFFLINE = "offline"
    # The batching is unknown: comparisons exclude such rows.
    TO_BE_CONFIRMED = "to_be_confirmed"


COLUMNS: Final = (
    "model_id",
    "model_name",
    "engine",
    "precision",
    "gpu",
    "gpu_count",
    "batch",
    "input_tokens",
    "output_tokens",
    "throughput_tokens_per_sec",
    "measurement_type",
    "scenario_notes",
    "source_tag",
)

# The columns that identify a measurement, and with them the notes about the engine's configuration
# (`notes.CONDITIONS`); the others contain its result.
MEASUREMENT: Final = (
    *("model_id", "engine", "precision", "gpu", "gpu_count", "batch"),
    *("input_tokens", "output_tokens", "measurement_type", "source_tag"),
)

# Every row's notes begin with these, in this order.
REQUIRED_NOTES: Final = ("input_tokens", "output_tokens", "batching")

# The usual spelling of engine names; others are written as the engine reports them.
_ENGINES: Final = {"vllm": "vLLM"}

_KEY: Final = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Row:
    """One fact.

    `engine`: name and version, as `vLLM 0.32.0`. `gpu`, `gpu_count`: the accelerators that the
    engine ran on; `CPU (<model of the processor>)` and 0 without one. `batch`: the mean number of
    sequences per decode step of the window (the note `batch_mean`), rounded and at least 1; the
    largest number is the note `batch_max`. Rows `to_be_confirmed` have the largest number of
    answers that overlapped (`batch_is=overlap`), rows of other sources what these state.
    `input_tokens`, `output_tokens`: per
    request (the rounded mean, where they differ). `throughput_tokens_per_sec`: generated tokens of
    all requests over the length of the window; prompt tokens are not counted. `source_tag`: the
    file or run that the figure comes from.
    """

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
    return (*columns, *(notes.get(name) for name in (*CONDITIONS, DATA_PARALLEL, LOADED)))


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

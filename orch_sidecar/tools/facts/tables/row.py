"""One fact, as a row of `tps_model_gpu.csv` (BATCHING/ORCH-3931, 3932).

Pure. Knows what a sound row is, and nothing of files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Label(StrEnum):
    """How the engine was batching, as the column `measurement_type` says it."""

    SINGLE_STREAM = "single_stream"
    BATCHED_ONLINE = "batched_online"
    OFFLINE = "offline"
    # Of an older file whose label says something else: it takes part in no comparison.
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

# What a measurement is. The rest of a row (the model's name in print, the figure, the notes) is
# what was found.
MEASUREMENT: Final = (
    *("model_id", "engine", "precision", "gpu", "gpu_count", "batch"),
    *("input_tokens", "output_tokens", "measurement_type", "source_tag"),
)

# Every row's notes have these, in this order, and then whatever else there is to say.
REQUIRED_NOTES: Final = ("input_tokens", "output_tokens", "batching")

# As engines are written about; as they call themselves otherwise.
_ENGINES: Final = {"vllm": "vLLM"}

_KEY: Final = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Row:
    """One fact.

    `engine`: name and version, as `vLLM 0.32.0`. `gpu`, `gpu_count`: the accelerators that the
    engine ran on; `CPU (<model of the processor>)` and 0 without one. `batch`: the most
    sequences that were decoded in one step within the window. `input_tokens`, `output_tokens`:
    per request (the mean, rounded, where they differ). `throughput_tokens_per_sec`: generated
    tokens of all requests together over the length of the window, prompts not counted.
    `source_tag`: what was read or run, so that the figure can be found again.
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
    """The same for two rows of one measurement, whatever they say of it."""
    return tuple(getattr(row, name) for name in MEASUREMENT)


def format_engine(name: str, version: str | None) -> str:
    """The column `engine`, of what an engine calls itself and its version, where that is known."""
    shown = _ENGINES.get(name, name)
    return shown if version is None else f"{shown} {version}"


def format_notes(notes: Mapping[str, str | int | float]) -> str:
    """`key=value; key=value`: the form of the column `scenario_notes`.

    Raises ValueError for a key that is no name, a value with `;` or a line break in it, or a number
    that is not finite.
    """
    parts = []
    for key, value in notes.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"the note {key}={value} must be a finite number")
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        if _KEY.fullmatch(key) is None:
            raise ValueError(f"{key!r} is no name of a note: lower case, digits and _")
        if any(mark in text for mark in ";\n\r"):
            raise ValueError(f"the note {key}={text!r} must be one line without ;")
        parts.append(f"{key}={text}")
    return "; ".join(parts)


def parse_notes(text: str) -> dict[str, str]:
    """The notes that a column's text has. Raises ValueError for what is not `key=value`."""
    notes: dict[str, str] = {}
    for part in text.split(";"):
        key, equals, value = part.strip().partition("=")
        if not equals or _KEY.fullmatch(key) is None:
            raise ValueError(f"{part.strip()!r} is not key=value")
        if key in notes:
            raise ValueError(f"{key!r} stands there twice")
        notes[key] = value.strip()
    return notes

"""Rules for each field of a fact, and for fields that must agree.

Pure. Knows values by the names of their columns, and nothing about files and lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from orch_sidecar.tools.facts.tables.row import REQUIRED_NOTES, Label, parse_notes

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

# Notes in milliseconds that comparisons use.
TTFT_P50_NOTE: Final = "ttft_p50_ms"
TTFT_P95_NOTE: Final = "ttft_p95_ms"

# A float keeps fifteen digits.
_WHOLE: Final = re.compile(r"0|[1-9][0-9]{0,14}")
_DECIMAL: Final = re.compile(r"(?:0|[1-9][0-9]{0,14})(?:\.[0-9]+)?")
# A float as `format_notes` formats it.
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,2})?")


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Fields that are valid individually but contradict each other; reported at one of them."""

    column: str
    value: str
    rule: str


def violated_rule(column: str, value: str) -> str | None:
    """Returns the rule that a field violates by itself, None for a valid field."""
    return _RULES[column](value)


def is_plausible(column: str, value: str) -> bool:
    """Returns whether a value, valid or not, looks as if it was meant for this column."""
    if column == "measurement_type" and value in LEGACY_LABELS:
        return True
    if column == "scenario_notes":
        return value != ""
    return _RULES[column](value) is None


def contradictions(valid: Mapping[str, str]) -> Iterator[Contradiction]:
    """Yields the contradictions among those fields of one row that are valid individually.

    Fields with a fault of their own are not in `valid`, and nothing is compared with them.
    """
    label = Label(valid["measurement_type"]) if "measurement_type" in valid else None
    batch = valid.get("batch")
    if label is Label.SINGLE_STREAM and batch not in (None, "1"):
        yield Contradiction("batch", str(batch), f"must be 1 in a row labelled {label}")
    if label in (Label.BATCHED_ONLINE, Label.OFFLINE) and batch == "1":
        yield Contradiction("batch", batch, f"must be above 1 in a row labelled {label}")
    if "scenario_notes" not in valid:
        return
    notes = parse_notes(valid["scenario_notes"])
    for name in ("input_tokens", "output_tokens"):
        if name in valid and notes[name] != valid[name]:
            rule = f"must equal the column {name}, {valid[name]}"
            yield Contradiction("scenario_notes", f"{name}={notes[name]}", rule)
    allowed = ("on", "off", "unknown") if label is None else BATCHING[label]
    if notes["batching"] not in allowed:
        row = "" if label is None else f" in a row labelled {label}"
        rule = f"must be {' or '.join(allowed)}{row}"
        yield Contradiction("scenario_notes", f"batching={notes['batching']}", rule)


def _text(value: str) -> str | None:
    if not value:
        return "must not be empty"
    if value != value.strip():
        return "must not begin or end with white space"
    return _one_line(value)


def _one_line(value: str) -> str | None:
    return "must be one line, without a line break" if "\n" in value or "\r" in value else None


def _whole(least: int) -> Callable[[str], str | None]:
    rule = f"must be a whole number in plain digits, at least {least}"

    def broken(value: str) -> str | None:
        return rule if _WHOLE.fullmatch(value) is None or int(value) < least else None

    return broken


def _throughput(value: str) -> str | None:
    if _DECIMAL.fullmatch(value) is None or not 0 < float(value) < math.inf:
        return "must be tokens per second, a decimal number above 0 such as 92.72"
    return None


def _label(value: str) -> str | None:
    if value in {label.value for label in Label}:
        return None
    if value in LEGACY_LABELS:
        return (
            "is a label of older files, which does not state how the engine was batching; "
            f"check --migrate-legacy changes it to {Label.TO_BE_CONFIRMED}"
        )
    return f"must be one of {', '.join(Label)}"


def _notes(value: str) -> str | None:
    if (rule := _one_line(value)) is not None:
        return rule
    try:
        notes = parse_notes(value)
    except ValueError as error:
        return f"must be notes such as input_tokens=512; output_tokens=64; batching=on: {error}"
    if tuple(notes)[: len(REQUIRED_NOTES)] != REQUIRED_NOTES:
        return f"must begin with the notes {', '.join(REQUIRED_NOTES)}, in this order"
    for name in (TTFT_P50_NOTE, TTFT_P95_NOTE):
        if name in notes and not _is_number(notes[name]):
            return f"{name}={notes[name]} must be a number of milliseconds"
    return None


def _is_number(value: str) -> bool:
    return _NUMBER.fullmatch(value) is not None and math.isfinite(float(value))


_RULES: Final[Mapping[str, Callable[[str], str | None]]] = {
    "model_id": _text,
    "model_name": _text,
    "engine": _text,
    "precision": _text,
    "gpu": _text,
    "gpu_count": _whole(0),
    "batch": _whole(1),
    "input_tokens": _whole(0),
    "output_tokens": _whole(1),
    "throughput_tokens_per_sec": _throughput,
    "measurement_type": _label,
    "scenario_notes": _notes,
    "source_tag": _text,
}

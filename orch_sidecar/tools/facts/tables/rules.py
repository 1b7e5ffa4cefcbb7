"""Rules for each field of a fact, and for each note that is known.

Pure. Knows values by the names of their columns and notes, and nothing about files and lines. Notes
with other names are free text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.forms import (
    ABOVE_0,
    Form,
    formula_rule,
    invisible_rule,
    matches,
    number,
    one_of,
    whole,
)
from orch_sidecar.tools.facts.tables.notes import TRACE_DIGITS, Arrivals
from orch_sidecar.tools.facts.tables.row import COLUMNS, TABLE, Label, parse_notes

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


def time_note(name: str, percentile: int) -> str:
    """Returns the name of the note with a percentile of a time, in milliseconds."""
    return f"{name}_p{percentile}_ms"


def early_note(name: str, percentile: int) -> str:
    """Returns the name of the note with MLPerf's early-stopping estimate of a percentile."""
    return f"{name}_p{percentile}_early_ms"


_NOTES: Final[Mapping[str, Form]] = {
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
    stated = ((name, text, _NOTES[name]) for name, text in notes.items() if name in _NOTES)
    broken = (
        f"{name}={text} {form.rule}" for name, text, form in stated if form.violated_rule(text)
    )
    return _FORMS["scenario_notes"].violated_rule(value) or next(broken, None)


def is_plausible(column: str, value: str) -> bool:
    """Returns whether a value, valid or not, looks as if it was meant for this column."""
    if column == "scenario_notes":
        return value != ""
    is_legacy = column == "measurement_type" and value in LEGACY_LABELS
    return is_legacy or violated_rule(column, value) is None

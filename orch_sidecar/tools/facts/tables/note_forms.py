"""The form of each note that is known: numbers, choices, names.

Pure. Notes with other names are free text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from orch_sidecar.tools.facts.tables.notes import (
    BATCH_MAX,
    BATCH_MEAN,
    BULK_CLIENTS,
    BULK_TRACE,
    CLIENT_BOTTLENECK,
    CUT,
    DATA_PARALLEL,
    EVIDENCE,
    GIVEN,
    LATENCY_OF,
    LOADED,
    PREFIX_HIT_RATIO,
    PRELIMINARY,
    TRACE_DIGITS,
    TRACE_LENGTHS,
    TRACE_TIME,
    TRACE_WINDOW,
    Arrivals,
)
from orch_sidecar.tools.facts.tables.row import COLUMNS, Label

PERCENTILES: Final = (50, 90, 95, 99)
TIMES: Final = ("ttft", "tpot", "latency")

# A float as `format_notes` formats it, and a count.
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,2})?")
_WHOLE: Final = re.compile(r"0|[1-9][0-9]{0,14}")
# vLLM's names of methods, types and backends.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+/-]*")
_DRAFTS: Final = re.compile(r"none|[A-Za-z0-9][A-Za-z0-9_.+/-]*(?::[1-9][0-9]{0,2})?")
_TRACE_DIGITS: Final = rf"[0-9a-f]{{{TRACE_DIGITS}}}"
_TRACE: Final = re.compile(rf"{Arrivals.TRACE}:{_TRACE_DIGITS}")
_WINDOW: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?:(?:[0-9]+(?:\.[0-9]+)?)?")
_LOADED: Final = re.compile(r"(?:dummy:|random:)?[0-9a-f]{16}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")

# Returns the rule that a value violates, None for a valid value.
_Form = Callable[[str], str | None]


def violated_form(notes: Mapping[str, str]) -> str | None:
    """Returns the first note without the form of its name, and the rule; None if there is none."""
    for name, value in notes.items():
        rule = _FORMS[name](value) if name in _FORMS else None
        if rule is not None:
            return f"{name}={value} {rule}"
    return None


def time_note(name: str, percentile: int) -> str:
    """Returns the name of the note with a percentile of a time, in milliseconds."""
    return f"{name}_p{percentile}_ms"


def early_note(name: str, percentile: int) -> str:
    """Returns the name of the note with MLPerf's early-stopping estimate of a percentile."""
    return f"{name}_p{percentile}_early_ms"


def _number(unit: str, least: float, most: float = math.inf) -> _Form:
    limits = f"of at least {least:g}" if math.isinf(most) else f"from {least:g} to {most:g}"
    rule = f"must be a number {unit}{limits}"

    def broken(value: str) -> str | None:
        valid = _NUMBER.fullmatch(value) is not None and math.isfinite(float(value))
        return None if valid and least <= float(value) <= most else rule

    return broken


def _above_0(value: str) -> str | None:
    broken = _NUMBER.fullmatch(value) is None or not 0 < float(value) < math.inf
    return "must be a number above 0" if broken else None


def _whole(least: int) -> _Form:
    rule = f"must be a whole number in plain digits, at least {least}"

    def broken(value: str) -> str | None:
        return rule if _WHOLE.fullmatch(value) is None or int(value) < least else None

    return broken


def _one_of(*values: str) -> _Form:
    rule = f"must be {values[0]}" if len(values) == 1 else f"must be one of {', '.join(values)}"
    return lambda value: None if value in values else rule


def _matches(pattern: re.Pattern[str], what: str) -> _Form:
    return lambda value: None if pattern.fullmatch(value) else f"must be {what}"


def _arrivals(value: str) -> str | None:
    if value in set(Arrivals) or _TRACE.fullmatch(value):
        return None
    return f"must be one of {', '.join(Arrivals)}, or trace: and {TRACE_DIGITS} digits of its hash"


def _given(value: str) -> str | None:
    names = value.split(",")
    if not set(names) <= set(COLUMNS) or len(set(names)) < len(names):
        return "must be names of columns, each once, separated by commas: engine,gpu"
    return None


_FORMS: Final[Mapping[str, _Form]] = {
    "arrivals": _arrivals,
    TRACE_WINDOW: _matches(_WINDOW, "two times in seconds: 0:300, or 300:"),
    TRACE_TIME: _above_0,
    TRACE_LENGTHS: _above_0,
    BULK_CLIENTS: _whole(1),
    BULK_TRACE: _matches(re.compile(_TRACE_DIGITS), f"{TRACE_DIGITS} digits of its hash"),
    LATENCY_OF: _one_of("interactive"),
    "rate_per_s": _above_0,
    "burstiness": _above_0,
    "at_once": _whole(1),
    "requests": _whole(1),
    "window_s": _number("of seconds, ", 0),
    **{name: _whole(0) for name in ("refused", "failed", "cancelled", "counted_by_events")},
    "goodput_share": _number("", 0, 1),
    BATCH_MEAN: _number("", 1),
    BATCH_MAX: _whole(1),
    "batch_is": _one_of("overlap"),
    "claim": _one_of("none", *Label),
    "speculative": _matches(_DRAFTS, "none, or a method and its drafts per step: ngram:3"),
    "quantization": _matches(_NAME, "none, or the name of a method: awq"),
    "kv_cache_dtype": _matches(_NAME, "the name of a type: bfloat16"),
    "prefix_caching": _one_of("on", "off"),
    "attention_backend": _matches(_NAME, "the name of a backend: FLASH_ATTN"),
    "tensor_parallel": _whole(1),
    "pipeline_parallel": _whole(1),
    DATA_PARALLEL: _whole(2),
    LOADED: _matches(_LOADED, "16 hexadecimal digits, after dummy: or random: or alone"),
    PREFIX_HIT_RATIO: _number("", 0, 1),
    "acceptance_length": _number("", 1),
    GIVEN: _given,
    PRELIMINARY: _one_of("yes"),
    CUT: _one_of("before", "after", "before,after"),
    CLIENT_BOTTLENECK: _one_of("yes"),
    EVIDENCE: _matches(_DIGEST, "sha256: and 64 hexadecimal digits"),
    **{
        note(name, percentile): _number("of milliseconds, ", 0)
        for note in (time_note, early_note)
        for name in TIMES
        for percentile in PERCENTILES
    },
}

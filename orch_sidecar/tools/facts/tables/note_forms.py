"""The form of each note that is known: numbers, choices, names.

Pure. Notes with other names are free text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from orch_sidecar.tools.facts.tables import notes as names
from orch_sidecar.tools.facts.tables.forms import ABOVE_0, Form, matches, number, one_of, whole
from orch_sidecar.tools.facts.tables.notes import TRACE_DIGITS, Arrivals
from orch_sidecar.tools.facts.tables.row import COLUMNS, Label

PERCENTILES: Final = (50, 90, 95, 99)
TIMES: Final = ("ttft", "tpot", "latency")

# vLLM's names of methods, types and backends.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+/-]*")
_DRAFTS: Final = re.compile(r"none|[A-Za-z0-9][A-Za-z0-9_.+/-]*(?::[1-9][0-9]{0,2})?")
_OFFLOAD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?::[0-9.]+(?:e[+-]?[0-9]{1,2})?)?")
_TRACE: Final = re.compile(rf"[0-9a-f]{{{TRACE_DIGITS}}}")
_ARRIVALS: Final = re.compile(rf"{'|'.join(Arrivals)}|{Arrivals.TRACE}:{_TRACE.pattern}")
_WINDOW: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?:(?:[0-9]+(?:\.[0-9]+)?)?")
_LOADED: Final = re.compile(r"(?:dummy:|random:)?[0-9a-f]{16}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
# Names of columns, none of which follows once more; with all of them it is shorter than 200.
_GIVEN: Final = re.compile(
    r"(?=.{0,200}\Z)(?!.*\b(\w+)\b.*\b\1\b)"
    rf"(?:{'|'.join(COLUMNS)})(?:,(?:{'|'.join(COLUMNS)}))*"
)


def violated_form(notes: Mapping[str, str]) -> str | None:
    """Returns the first note without the form of its name, and the rule; None if there is none."""
    for name, value in notes.items():
        rule = _FORMS[name].violated_rule(value) if name in _FORMS else None
        if rule is not None:
            return f"{name}={value} {rule}"
    return None


def time_note(name: str, percentile: int) -> str:
    """Returns the name of the note with a percentile of a time, in milliseconds."""
    return f"{name}_p{percentile}_ms"


def early_note(name: str, percentile: int) -> str:
    """Returns the name of the note with MLPerf's early-stopping estimate of a percentile."""
    return f"{name}_p{percentile}_early_ms"


_FORMS: Final[Mapping[str, Form]] = {
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
    "speculative": matches(_DRAFTS, "none, or a method and its drafts per step: ngram:3"),
    "quantization": matches(_NAME, "none, or the name of a method: awq"),
    "kv_cache_dtype": matches(_NAME, "the name of a type: bfloat16"),
    "prefix_caching": one_of("on", "off"),
    "attention_backend": matches(_NAME, "the name of a backend: FLASH_ATTN"),
    "tensor_parallel": whole(1),
    "pipeline_parallel": whole(1),
    names.DATA_PARALLEL: whole(2),
    "max_num_batched_tokens": whole(1),
    "long_prefill_token_threshold": whole(0),
    "async_scheduling": one_of("on", "off"),
    "prefill_schedule_interval": whole(1),
    "execution": matches(_NAME, "eager, or modes: vllm_compile+full_and_piecewise"),
    "kv_offload": matches(_OFFLOAD, "none, or a connector and its GiB: OffloadingConnector:8"),
    "max_loras": whole(0),
    names.LOADED: matches(_LOADED, "16 hexadecimal digits, after dummy: or random: or alone"),
    names.PREFIX_HIT_RATIO: number("", 0, 1),
    "acceptance_length": number("", 1),
    names.GIVEN: matches(_GIVEN, "names of columns, each once, separated by commas: engine,gpu"),
    names.PRELIMINARY: one_of("yes"),
    names.CUT: one_of("before", "after", "before,after"),
    names.CLIENT_BOTTLENECK: one_of("yes"),
    names.EVIDENCE: matches(_DIGEST, "sha256: and 64 hexadecimal digits"),
    **{
        note(name, percentile): number("of milliseconds, ", 0)
        for note in (time_note, early_note)
        for name in TIMES
        for percentile in PERCENTILES
    },
}

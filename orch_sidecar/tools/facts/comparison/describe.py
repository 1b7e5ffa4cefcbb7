"""Describes conditions in one line: what is unusual in them, and what distinguishes sets.

Pure. An engine without speculative decoding and a run without cache hits are what a reader
expects; they are named only beside others. What is unknown is always named, but for what only
older engines do not report.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from orch_sidecar.tools.facts.comparison.compare import ComparableSet
from orch_sidecar.tools.facts.comparison.conditions import (
    DIFFERENCES,
    NONE,
    UNKNOWN,
    Conditions,
    Evidence,
    Loop,
)
from orch_sidecar.tools.facts.tables.notes import (
    CONDITIONS,
    DATA_PARALLEL,
    PREFIX_HIT_RATIO,
    SETTINGS,
)

_SETTINGS: Final = (*CONDITIONS, DATA_PARALLEL, PREFIX_HIT_RATIO, *SETTINGS)

# Values that are not worth a word, unless other sets have others.
_USUAL: Final[dict[str, tuple[object, ...]]] = {
    "arrivals": (Loop.UNKNOWN,),
    "traffic": (NONE,),
    "speculative": (NONE,),
    "quantization": (NONE,),
    # The types in which models are published.
    "kv_cache_dtype": ("bfloat16", "float16", "float32"),
    "prefix_caching": ("on",),
    "tensor_parallel": ("1",),
    "pipeline_parallel": ("1",),
    "data_parallel": ("1",),
    "prefix_hit_ratio": (NONE,),
    **dict.fromkeys(SETTINGS, ("0", "1", NONE)),  # vLLM's defaults
    "evidence": (Evidence.UNVERIFIED,),
}

# How values are spelled; others are spelled as they are.
_SPELLED: Final = {
    "input_tokens": "{} tokens in",
    "output_tokens": "{} tokens out",
    "speculative": "speculative decoding {}",
    "quantization": "quantization {}",
    "kv_cache_dtype": "KV cache {}",
    "prefix_caching": "prefix cache {}",
    "attention_backend": "attention {}",
    "tensor_parallel": "tensor parallel {}",
    "pipeline_parallel": "pipeline parallel {}",
    "data_parallel": "one rank of data parallel {}",
    "loaded": "loaded as {}",
    "max_num_batched_tokens": "steps of {} tokens",
    "long_prefill_token_threshold": "long prompts by {} tokens",
    "async_scheduling": "asynchronous scheduling {}",
    "prefill_schedule_interval": "prompts every {} steps",
    "execution": "execution {}",
    "kv_offload": "KV offload {}",
    "max_loras": "LoRA adapters {}",
    "prefix_hit_ratio": "prefix cache hits {}",
    "given": "{} given by the user",
    "evidence": "evidence {}",
}
_NONE: Final = {
    "traffic": "no trace",
    "speculative": "no speculative decoding",
    "quantization": "no quantization",
    "kv_offload": "no KV offload",
    "prefix_hit_ratio": "no prefix cache hits",
    "given": "",
}
# Notes that a row has or has not.
_REMARKS: Final = {
    "preliminary": "preliminary",
    "cut": "requests cut off",
    "client_bottleneck": "the client may be the bottleneck",
}


def differing_conditions(sets: Sequence[ComparableSet]) -> tuple[str, ...]:
    """Returns the conditions in which the sets differ, in the order of the fields."""
    return tuple(name for name in DIFFERENCES if len(_values(sets, name)) > 1)


def contrasting_conditions(sets: Sequence[ComparableSet]) -> tuple[str, ...]:
    """Returns the conditions of which the sets have different known values; and those that older
    engines do not report, where only some of the sets have them."""
    known = {name: _values(sets, name) - {UNKNOWN} for name in DIFFERENCES}
    mixed = {name for name in SETTINGS if known[name] and len(_values(sets, name)) > 1}
    return tuple(name for name in DIFFERENCES if len(known[name]) > 1 or name in mixed)


def _values(sets: Sequence[ComparableSet], name: str) -> set[object]:
    return {getattr(each.conditions, name) for each in sets}


def describe(
    conditions: Conditions, *, without: Collection[str] = (), always: Collection[str] = ()
) -> str:
    """Formats conditions in one line, except for those in `without` and usual values.

    `always`: the conditions whose usual values are named, too.
    """
    shown = [name for name in DIFFERENCES if name not in without]
    settings = [name for name in shown if name in _SETTINGS]
    parts = []
    if len(settings) > 1 and all(getattr(conditions, name) == UNKNOWN for name in settings):
        shown = [name for name in shown if name not in settings]
        parts.append("engine settings unknown")
    elif all(getattr(conditions, name) == UNKNOWN for name in SETTINGS):
        parts += ["scheduling unknown"] if {*shown} & {*always} & {*SETTINGS} else []
        shown = [name for name in shown if name not in SETTINGS]
    texts = (_text(conditions, name, shown, always) for name in shown)
    return ", ".join([*filter(None, texts), *parts])


def _text(
    conditions: Conditions, name: str, shown: Collection[str], always: Collection[str]
) -> str:
    """Formats one condition; empty where it is not worth a word."""
    value = getattr(conditions, name)
    if name in _REMARKS:
        return _REMARKS[name] if value else ""
    if name == "gpu" and "gpu_count" in shown and conditions.gpu_count:
        return f"{conditions.gpu_count} x {value}"
    if name == "gpu_count":
        return "" if "gpu" in shown else _accelerators(value)
    if name not in always and _is_usual(name, value):
        return ""
    return _NONE[name] if value == NONE else _SPELLED.get(name, "{}").format(value)


def _is_usual(name: str, value: object) -> bool:
    if name == "attention_backend":  # vLLM chooses it by the accelerator
        return value != UNKNOWN
    if name in ("max_num_batched_tokens", "async_scheduling", "execution"):  # and these, by more
        return value not in ("eager", UNKNOWN)
    if name == "loaded":  # a digest; weights that mean nothing are worth a word
        return ":" not in str(value)
    return value in _USUAL.get(name, ())


def _accelerators(count: int) -> str:
    return "no accelerator" if count == 0 else f"{count} accelerator{'' if count == 1 else 's'}"


def value_text(value: object) -> str:
    """Formats the value of a condition on its own."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)

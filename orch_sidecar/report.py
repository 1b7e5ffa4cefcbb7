"""What an engine says of itself in, what admission must know out.

Pure. What admission cannot do without (epoch, slots, foreign sequences) must be there. The rest
is optional, and an optional field that is not what it should be counts as not said: an engine of
another version is served with less knowledge, not refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from orch_sidecar.admission.ask import EngineReport, StepTime

# The fields that a report is made of: a change of any other need not be looked at.
FIELDS: Final = frozenset(
    {
        "epoch", "slots_total", "running", "waiting", "prefilling", "foreign", "ctx_max",
        "kv_tokens_total", "kv_block_tokens", "kv_cache_usage", "preemptions_total", "step_time",
        "prefill_tokens_per_s", "features",
    }
)  # fmt: skip


def report_of(document: Mapping[str, Any]) -> EngineReport:
    """The report. Raises KeyError, TypeError or ValueError if what is needed is missing."""
    slots_total, foreign = document["slots_total"], document["foreign"]
    if type(slots_total) is not int or type(foreign) is not int:
        raise TypeError(f"slots_total is {slots_total!r}, foreign is {foreign!r}: no integers")
    if slots_total < 1 or foreign < 0:
        raise ValueError(f"slots_total is {slots_total}, foreign is {foreign}")
    return EngineReport(
        epoch=str(document["epoch"]),
        slots_total=slots_total,
        foreign=foreign,
        ctx_max=_count(document, "ctx_max", 1),
        kv_tokens_total=_count(document, "kv_tokens_total", 1),
        kv_block_tokens=_count(document, "kv_block_tokens", 1) or 1,
        kv_usage=min(1.0, number(document, "kv_cache_usage") or 0.0),
        preemptions_total=_count(document, "preemptions_total", 0) or 0,
        prefilling=_count(document, "prefilling", 0) or 0,
        scheduled=_scheduled(document, foreign),
        step_time=step_time_of(document.get("step_time")),
        prefill_tokens_per_s=number(document, "prefill_tokens_per_s") or None,
        chunk_tokens=_chunk(document.get("features")),
    )


def _scheduled(document: Mapping[str, Any], foreign: int) -> int | None:
    """Sequences of leases in the scheduler."""
    running, waiting = _count(document, "running", 0), _count(document, "waiting", 0)
    return None if running is None or waiting is None else max(0, running + waiting - foreign)


def _chunk(features: Any) -> int | None:
    """The most of one prompt that a step reads; 0 as the threshold means that there is none."""
    if not isinstance(features, Mapping):
        return None
    whole = _count(features, "max_num_batched_tokens", 1)
    chunk = _count(features, "long_prefill_token_threshold", 1)
    return chunk if whole is None else min(whole, chunk or whole)


def decode_steps_of(document: Mapping[str, Any]) -> list[tuple[int, int, float]] | None:
    """Batch size, decode steps of that size since the engine started, and their seconds.

    What cannot be read is left out. None: it has not said any.
    """
    said = document.get("steps_by_batch")
    if not isinstance(said, Mapping):
        return None
    found = []
    for batch, counted in said.items():
        try:
            found.append((int(batch), int(counted[0]), float(counted[1])))
        except (TypeError, ValueError, LookupError, OverflowError):
            continue
    return found


def step_time_of(said: Any) -> StepTime | None:
    """The measured step time; None while there is none that the engine calls good."""
    if not isinstance(said, dict) or said.get("quality") != "good":
        return None
    t0_ms, c_ms, alpha = (number(said, name) for name in ("t0_ms", "c_ms", "alpha"))
    largest = _count(said, "largest", 1)
    if t0_ms is None or c_ms is None or alpha is None or largest is None:
        return None
    # A step of no time would promise everything.
    return StepTime(t0_ms, c_ms, alpha, largest) if t0_ms + c_ms > 0 else None


def number(document: Mapping[str, Any], name: str) -> float | None:
    """A finite number from 0, None for anything else."""
    value = document.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        told = float(value)
    except OverflowError:
        return None
    return told if math.isfinite(told) and told >= 0 else None


def texts(document: Mapping[str, Any], name: str) -> frozenset[str]:
    """A list of strings, without what is none."""
    value = document.get(name)
    if not isinstance(value, list):
        return frozenset()
    return frozenset(item for item in value if isinstance(item, str))


def _count(document: Mapping[str, Any], name: str, least: int) -> int | None:
    value = document.get(name)
    return value if type(value) is int and value >= least else None

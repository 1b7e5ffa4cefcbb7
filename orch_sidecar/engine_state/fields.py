"""The rules of the fields of an engine's state document: types and ranges. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm_plugin.contracts.lease_protocol import parse_lease

MAX_SLOTS: Final = 100_000  # vLLM's schedulers have some thousands
_MAX_SEQUENCES: Final = 10_000_000
_MAX_TOKENS: Final = 10**12
MAX_EVENTS: Final = 2**63 - 1
_MAX_SECONDS: Final = 10**12
_MAX_MILLISECONDS: Final = 10**9
_MAX_ITEMS: Final = 1000  # steps; readers of this sidecar get them all
_MAX_GROUPS: Final = 1000  # of layers; each entry costs time at every admission decision
_MAX_EXPONENT: Final = 10  # of the batch in a step's time; measured ones are around 1


@dataclass(frozen=True, slots=True)
class Rule:
    """The requirement of a field: in words, and as a test."""

    text: str
    holds: Callable[[Any], bool]


def count(least: int, most: int) -> Rule:
    text = f"an integer from {least} to {most}"
    return Rule(text, lambda value: type(value) is int and least <= value <= most)


def _amount(most: float) -> Rule:
    return Rule(f"a number from 0 to {most:g}", lambda value: _is_amount(value, most))


def _is_amount(value: Any, most: float) -> bool:
    # Compared before any conversion: an integer may be too large for a float.
    return type(value) in (int, float) and 0 <= value <= most


def _or_null(rule: Rule) -> Rule:
    return Rule(f"null or {rule.text}", lambda value: value is None or rule.holds(value))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and each for each in value)


def _leases(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, str) and parse_lease(each) for each in value
    )


def _step_time(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_amount(value.get("t0_ms"), _MAX_MILLISECONDS)
        and _is_amount(value.get("c_ms"), _MAX_MILLISECONDS)
        and _is_amount(value.get("alpha"), _MAX_EXPONENT)
        and count(0, MAX_SLOTS).holds(value.get("largest"))
        and _is_amount(value.get("tokens", 1), MAX_SLOTS)  # of a sequence in a step
        and _is_amount(value.get("traffic", 1), MAX_SLOTS)  # times the fit
        and _is_amount(value.get("prompt_share", 0), 1.0)
        and isinstance(value.get("quality"), str)
    )


def _steps_by_batch(value: Any) -> bool:
    return isinstance(value, dict) and all(
        batch.isdecimal()
        and len(batch) <= len(str(_MAX_SEQUENCES))
        and isinstance(counted, list)
        and len(counted) == 2
        and _is_amount(counted[0], MAX_EVENTS)
        and type(counted[0]) is int
        and _is_amount(counted[1], _MAX_SECONDS)
        for batch, counted in value.items()
    )


def _batches(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MAX_ITEMS
        and all(type(each) is int and 0 <= each <= _MAX_SEQUENCES for each in value)
    )


def _kv_groups(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MAX_GROUPS
        and all(
            isinstance(entry, dict)
            and "block_tokens" in entry
            and all(rule.holds(entry[name]) for name, rule in _KV_GROUP.items() if name in entry)
            for entry in value
        )
    )


def _claim(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and count(1, MAX_SLOTS).holds(value.get("cost"))
        and isinstance(value.get("urgent"), bool)
        and count(0, MAX_SLOTS).holds(value.get("more", 0))
    )


def _prefix_cache(value: Any) -> bool:
    return isinstance(value, dict) and all(
        count(0, MAX_EVENTS).holds(value.get(name)) for name in ("queries_total", "hits_total")
    )


def _lora(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(_texts(value.get(name)) for name in ("adapters", "running", "waiting"))
        and all(_texts(value.get(name, [])) for name in ("foreign", "wanted", "resident"))
        and isinstance(value.get("joinable", True), bool)
        and count(0, MAX_EVENTS).holds(value.get("loads_total", 0))
    )


def _prefill(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_amount(value.get("tokens"), MAX_EVENTS)
        and _is_amount(value.get("seconds"), _MAX_SECONDS)
    )


_KV_GROUP: Final[Mapping[str, Rule]] = {
    "count": count(1, _MAX_GROUPS),
    "block_tokens": count(1, _MAX_TOKENS),
    "blocks_most": count(1, _MAX_TOKENS),
    "blocks_reading": count(1, _MAX_TOKENS),
    "blocks_extra": count(0, _MAX_TOKENS),
}
_TEXT: Final = Rule("a text", lambda value: isinstance(value, str))
_NAME: Final = Rule(
    "a text that is not empty", lambda value: isinstance(value, str) and bool(value)
)
_NAMES: Final = Rule("a list of texts that are not empty", _texts)
_OBJECT: Final = Rule("an object", lambda value: isinstance(value, dict))

FIELDS: Final[Mapping[str, Rule]] = {
    "api_version": _NAME,
    "epoch": _NAME,
    "profile": _NAME,
    "measurement_type": _NAME,
    "engine": _NAME,
    "engine_version": _NAME,
    "pool": _NAME,
    "state": _NAME,
    "message": _or_null(_TEXT),
    "gpu": _TEXT,
    "precision": _TEXT,
    "weights": _TEXT,
    "conditions": _OBJECT,
    "observed_at": _TEXT,
    "batching": Rule("true or false", lambda value: isinstance(value, bool)),
    # 0 until the engine of a child sidecar reports.
    "slots_total": count(0, MAX_SLOTS),
    "slots_free": count(0, MAX_SLOTS),
    "foreign": count(0, _MAX_SEQUENCES),
    "leased": count(0, _MAX_SEQUENCES),
    "sidecars": count(0, _MAX_SEQUENCES),
    "contended": Rule("true or false", lambda value: isinstance(value, bool)),
    "foreign_interactive": count(0, _MAX_SEQUENCES),
    "claim": _or_null(
        Rule("an object of cost, from 1, urgent, true or false, and more, from 0", _claim)
    ),
    "claimed": count(0, MAX_EVENTS),
    "waits": Rule("true or false", lambda value: isinstance(value, bool)),
    "no_slot_total": count(0, MAX_EVENTS),
    "running": count(0, _MAX_SEQUENCES),
    "waiting": count(0, _MAX_SEQUENCES),
    "prefilling": count(0, _MAX_SEQUENCES),
    "peak": count(0, _MAX_SEQUENCES),
    "batch_seen": count(0, _MAX_SEQUENCES),
    "gpu_count": count(0, _MAX_SEQUENCES),
    "ctx_max": count(1, _MAX_TOKENS),
    "kv_tokens_total": count(0, _MAX_TOKENS),
    "kv_blocks_total": count(0, _MAX_TOKENS),
    "kv_groups": Rule(
        f"a list of at most {_MAX_GROUPS} objects, each with a block_tokens from 1", _kv_groups
    ),
    "kv_cache_usage": _amount(1.0),
    "preemptions_total": count(0, MAX_EVENTS),
    "requests_total": count(0, MAX_EVENTS),
    "steps_total": count(0, MAX_EVENTS),
    "generated_tokens_total": count(0, MAX_EVENTS),
    "busy_seconds_total": _amount(_MAX_SECONDS),
    "prefill_tokens_per_s": _or_null(_amount(_MAX_TOKENS)),
    "step_time": _or_null(
        Rule("an object of t0_ms, c_ms, alpha, largest and quality, in their ranges", _step_time)
    ),
    "steps_by_batch": Rule("[steps, seconds] by batch size", _steps_by_batch),
    "last_batches": Rule(f"a list of at most {_MAX_ITEMS} batch sizes", _batches),
    "prefill": Rule("an object of tokens and seconds, from 0", _prefill),
    "prefix_cache": Rule("an object of queries_total and hits_total, from 0", _prefix_cache),
    "models": _NAMES,
    "lora": Rule("an object of lists of names, such as adapters, running and waiting", _lora),
    "supported_workloads": _NAMES,
    "leases": Rule("a list of leases", _leases),
    "queue": _OBJECT,
    "rate_limits": _OBJECT,
    "features": _OBJECT,
}

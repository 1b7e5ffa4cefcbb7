"""Parses and checks an engine's state events.

Pure. Every field of a checked document has the type and range that `_FIELDS` requires. Unknown
fields are kept unchanged, and an engine of another version may omit all but the required fields.
One invalid field makes the whole report invalid: where one number is nonsense, others may be, too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from vllm_plugin.lease_protocol import parse_lease

Document = dict[str, Any]

_SLOTS: Final = 100_000  # vLLM's schedulers have some thousands
_SEQUENCES: Final = 10_000_000
_TOKENS: Final = 10**12
_EVENTS: Final = 2**63 - 1
_SECONDS: Final = 10**12
_MILLISECONDS: Final = 10**9
_LISTED: Final = 1000  # steps; readers of this sidecar get them all
_GROUPS: Final = 1000  # of layers; each entry costs time at every admission decision
_EXPONENT: Final = 10  # of the batch in a step's time; measured ones are around 1

_SHOWN: Final = 80  # characters of a value in a message


class InvalidReport(ValueError):
    """An invalid report; the message names the field, its value and the rule."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """The requirement of a field: in words, and as a test."""

    text: str
    holds: Callable[[Any], bool]


def _count(least: int, most: int) -> _Rule:
    text = f"an integer from {least} to {most}"
    return _Rule(text, lambda value: type(value) is int and least <= value <= most)


def _amount(most: float) -> _Rule:
    return _Rule(f"a number from 0 to {most:g}", lambda value: _is_amount(value, most))


def _is_amount(value: Any, most: float) -> bool:
    # Compared before any conversion: an integer may be too large for a float.
    return type(value) in (int, float) and 0 <= value <= most


def _or_null(rule: _Rule) -> _Rule:
    return _Rule(f"null or {rule.text}", lambda value: value is None or rule.holds(value))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and each for each in value)


def _leases(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, str) and parse_lease(each) for each in value
    )


def _step_time(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_amount(value.get("t0_ms"), _MILLISECONDS)
        and _is_amount(value.get("c_ms"), _MILLISECONDS)
        and _is_amount(value.get("alpha"), _EXPONENT)
        and _count(0, _SLOTS).holds(value.get("largest"))
        and _is_amount(value.get("tokens", 1), _SLOTS)  # of a sequence in a step
        and _is_amount(value.get("traffic", 1), _SLOTS)  # times the fit
        and _is_amount(value.get("prompt_share", 0), 1.0)
        and isinstance(value.get("quality"), str)
    )


def _steps_by_batch(value: Any) -> bool:
    return isinstance(value, dict) and all(
        batch.isdecimal()
        and len(batch) <= len(str(_SEQUENCES))
        and isinstance(counted, list)
        and len(counted) == 2
        and _is_amount(counted[0], _EVENTS)
        and type(counted[0]) is int
        and _is_amount(counted[1], _SECONDS)
        for batch, counted in value.items()
    )


def _batches(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _LISTED
        and all(type(each) is int and 0 <= each <= _SEQUENCES for each in value)
    )


def _kv_groups(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _GROUPS
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
        and _count(1, _SLOTS).holds(value.get("cost"))
        and isinstance(value.get("urgent"), bool)
        and _count(0, _SLOTS).holds(value.get("more", 0))
    )


def _prefix_cache(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _count(0, _EVENTS).holds(value.get(name)) for name in ("queries_total", "hits_total")
    )


def _lora(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _texts(value.get(name)) for name in ("adapters", "running", "waiting")
    )


def _prefill(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_amount(value.get("tokens"), _EVENTS)
        and _is_amount(value.get("seconds"), _SECONDS)
    )


_KV_GROUP: Final[Mapping[str, _Rule]] = {
    "count": _count(1, _GROUPS),
    "block_tokens": _count(1, _TOKENS),
    "blocks_most": _count(1, _TOKENS),
    "blocks_reading": _count(1, _TOKENS),
    "blocks_extra": _count(0, _TOKENS),
}
_TEXT: Final = _Rule("a text", lambda value: isinstance(value, str))
_NAME: Final = _Rule(
    "a text that is not empty", lambda value: isinstance(value, str) and bool(value)
)
_NAMES: Final = _Rule("a list of texts that are not empty", _texts)
_OBJECT: Final = _Rule("an object", lambda value: isinstance(value, dict))

_FIELDS: Final[Mapping[str, _Rule]] = {
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
    "batching": _Rule("true or false", lambda value: isinstance(value, bool)),
    # 0 until the engine of a child sidecar reports.
    "slots_total": _count(0, _SLOTS),
    "slots_free": _count(0, _SLOTS),
    "foreign": _count(0, _SEQUENCES),
    "leased": _count(0, _SEQUENCES),
    "sidecars": _count(0, _SEQUENCES),
    "contended": _Rule("true or false", lambda value: isinstance(value, bool)),
    "foreign_interactive": _count(0, _SEQUENCES),
    "claim": _or_null(
        _Rule("an object of cost, from 1, urgent, true or false, and more, from 0", _claim)
    ),
    "claimed": _count(0, _EVENTS),
    "waits": _Rule("true or false", lambda value: isinstance(value, bool)),
    "no_slot_total": _count(0, _EVENTS),
    "running": _count(0, _SEQUENCES),
    "waiting": _count(0, _SEQUENCES),
    "prefilling": _count(0, _SEQUENCES),
    "peak": _count(0, _SEQUENCES),
    "batch_seen": _count(0, _SEQUENCES),
    "gpu_count": _count(0, _SEQUENCES),
    "ctx_max": _count(1, _TOKENS),
    "kv_tokens_total": _count(0, _TOKENS),
    "kv_blocks_total": _count(0, _TOKENS),
    "kv_groups": _Rule(
        f"a list of at most {_GROUPS} objects, each with a block_tokens from 1", _kv_groups
    ),
    "kv_cache_usage": _amount(1.0),
    "preemptions_total": _count(0, _EVENTS),
    "requests_total": _count(0, _EVENTS),
    "steps_total": _count(0, _EVENTS),
    "generated_tokens_total": _count(0, _EVENTS),
    "busy_seconds_total": _amount(_SECONDS),
    "prefill_tokens_per_s": _or_null(_amount(_TOKENS)),
    "step_time": _or_null(
        _Rule("an object of t0_ms, c_ms, alpha, largest and quality, in their ranges", _step_time)
    ),
    "steps_by_batch": _Rule("[steps, seconds] by batch size", _steps_by_batch),
    "last_batches": _Rule(f"a list of at most {_LISTED} batch sizes", _batches),
    "prefill": _Rule("an object of tokens and seconds, from 0", _prefill),
    "prefix_cache": _Rule("an object of queries_total and hits_total, from 0", _prefix_cache),
    "models": _NAMES,
    "lora": _Rule("an object of adapters, running and waiting, lists of names", _lora),
    "supported_workloads": _NAMES,
    "leases": _Rule("a list of leases", _leases),
    "queue": _OBJECT,
    "rate_limits": _OBJECT,
    "features": _OBJECT,
}

# Parsed entry by entry: only those that differ from the state before are checked again.
_BY_BATCH: Final = "steps_by_batch"

_REQUIRED: Final = ("epoch", "slots_total", "foreign", "peak", "profile", "measurement_type")


def parsed(data: bytes) -> Document:
    """Parses an event's data. Raises InvalidReport for anything but a JSON object."""
    try:
        decoder = _STRICT if _MAY_OVERFLOW.search(data) else _FAST
        value = decoder.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidReport(f"{_shown(data)} is not valid JSON: {_shown(error)}") from None
    if not isinstance(value, dict):
        raise InvalidReport(f"{_shown(value)} is not a JSON object")
    return value


def checked(fields: Document, *, whole: bool, before: Document | None = None) -> Document:
    """Checks and returns `fields`. `whole`: the required fields must be present. `before`: the
    state that they change, checked already. Raises InvalidReport."""
    for name, value in fields.items():
        rule = _FIELDS.get(name)
        if rule is None:
            continue
        new = value
        if name == _BY_BATCH and before is not None and isinstance(value, dict):
            known = before.get(name, {})
            new = {batch: each for batch, each in value.items() if known.get(batch) != each}
        if not rule.holds(new):
            raise InvalidReport(f"{name} is {_shown(value)}: it must be {rule.text}")
    if whole:
        for name in _REQUIRED:
            if name not in fields:
                raise InvalidReport(f"{name} is missing: it is required")
    return fields


def ended(fields: Document) -> list[str]:
    """Returns the leases of an ENDED event. Raises InvalidReport."""
    if "leases" not in fields:
        raise InvalidReport("leases is missing: it is required")
    leases: list[str] = checked({"leases": fields["leases"]}, whole=False)["leases"]
    return leases


def offered(fields: Document) -> tuple[int, int]:
    """Returns the slots of an OFFER event, and its number. Raises InvalidReport."""
    for name, rule in (("cost", _count(1, _SLOTS)), ("number", _count(1, _EVENTS))):
        if not rule.holds(fields.get(name)):
            text = f"{name} of an offer is {_shown(fields.get(name))}: it must be {rule.text}"
            raise InvalidReport(text)
    return fields["cost"], fields["number"]


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_SHOWN]} is not a finite number")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


# A number that Python reads as infinite has an exponent of three digits or hundreds of digits:
# elsewhere the decoder need not look at each.
_MAY_OVERFLOW: Final = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{200}")
_STRICT: Final = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)
_FAST: Final = json.JSONDecoder(parse_constant=_no_number)


def _shown(value: Any) -> str:
    """A value, shortened for messages; an integer may have more digits than Python prints."""
    if type(value) is int and value.bit_length() > 256:
        return f"an integer of about {int(value.bit_length() * math.log10(2))} digits"
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."

"""Parses and checks an engine's state events: the types and ranges of its state document.

Pure. Every field of a checked document has the type and range that `Fields` requires. Unknown
fields are kept unchanged, and an engine of another version may omit all but the required fields:
their defaults here mean nothing. One invalid field makes the whole report invalid: where one number
is nonsense, others may be, too.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Final, NoReturn, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from vllm_plugin.contracts.lease_protocol import LEASE_PATTERN

Document = dict[str, Any]
_T = TypeVar("_T")

_SHOWN_CHARACTERS: Final = 80  # characters of a value in a message


class InvalidReport(ValueError):
    """An invalid report; the message names the field, its value and the rule."""


_MAX_SLOTS: Final = 100_000  # vLLM's schedulers have some thousands
_MAX_SEQUENCES: Final = 10_000_000
_MAX_TOKENS: Final = 10**12
_MAX_EVENTS: Final = 2**63 - 1
_MAX_SECONDS: Final = 10**12
_MAX_MILLISECONDS: Final = 10**9
_MAX_ITEMS: Final = 1000  # steps; readers of this sidecar get them all
_MAX_GROUPS: Final = 1000  # of layers; each entry costs time at every admission decision
_MAX_EXPONENT: Final = 10  # of the batch in a step's time; measured ones are around 1

_Name = Annotated[str, Meta(min_length=1)]
_Names = list[_Name]
_Object = dict[str, Any]
_Slots = Annotated[int, Meta(ge=0, le=_MAX_SLOTS)]
_SomeSlots = Annotated[int, Meta(ge=1, le=_MAX_SLOTS)]
_Sequences = Annotated[int, Meta(ge=0, le=_MAX_SEQUENCES)]
_Tokens = Annotated[int, Meta(ge=0, le=_MAX_TOKENS)]
_SomeTokens = Annotated[int, Meta(ge=1, le=_MAX_TOKENS)]
_Events = Annotated[int, Meta(ge=0, le=_MAX_EVENTS)]
_Seconds = Annotated[float, Meta(ge=0, le=_MAX_SECONDS)]
_Milliseconds = Annotated[float, Meta(ge=0, le=_MAX_MILLISECONDS)]
_Share = Annotated[float, Meta(ge=0, le=1)]
# By batch size, which is a text in JSON: decode steps, and their seconds.
_Batch = Annotated[str, Meta(pattern=rf"^[0-9]{{1,{len(str(_MAX_SEQUENCES))}}}\Z")]
_Steps = dict[_Batch, tuple[_Events, _Seconds]]


class _StepTime(Struct):
    t0_ms: _Milliseconds
    c_ms: _Milliseconds
    alpha: Annotated[float, Meta(ge=0, le=_MAX_EXPONENT)]
    largest: _Slots
    quality: str
    tokens: Annotated[float, Meta(ge=0, le=_MAX_SLOTS)] = 1  # of a sequence in a step
    traffic: Annotated[float, Meta(ge=0, le=_MAX_SLOTS)] = 1  # times the fit
    prompt_share: _Share = 0


class _Prefill(Struct):
    tokens: Annotated[float, Meta(ge=0, le=_MAX_EVENTS)]
    seconds: _Seconds


class _PrefixCache(Struct):
    queries_total: _Events
    hits_total: _Events


class _KvGroup(Struct):
    block_tokens: _SomeTokens
    count: Annotated[int, Meta(ge=1, le=_MAX_GROUPS)] = 1
    blocks_most: _SomeTokens = 1
    blocks_reading: _SomeTokens = 1
    blocks_extra: _Tokens = 0


class _Lora(Struct):
    adapters: _Names
    running: _Names
    waiting: _Names
    foreign: _Names = []
    wanted: _Names = []
    resident: _Names = []
    joinable: bool = True
    loads_total: _Events = 0


class _Claim(Struct):
    cost: _SomeSlots
    urgent: bool
    more: _Slots = 0


class Offer(Struct):
    """The fields of an OFFER event."""

    cost: _SomeSlots
    number: Annotated[int, Meta(ge=1, le=_MAX_EVENTS)]


class Fields(Struct):
    """The fields of the document. Others are kept as they are."""

    api_version: _Name = ""
    epoch: _Name = ""
    profile: _Name = ""
    measurement_type: _Name = ""
    engine: _Name = ""
    engine_version: _Name = ""
    pool: _Name = ""
    state: _Name = ""
    message: str | None = None
    gpu: str = ""
    precision: str = ""
    weights: str = ""
    conditions: _Object = {}
    observed_at: str = ""
    batching: bool = False
    slots_total: _Slots = 0  # 0 until the engine of a child sidecar reports
    slots_free: _Slots = 0
    unleased: _Name = ""
    foreign: _Sequences = 0
    leased: _Sequences = 0
    sidecars: _Sequences = 0
    contended: bool = False
    foreign_interactive: _Sequences = 0
    claim: _Claim | None = None
    claimed: _Events = 0
    waits: bool = False
    no_slot_total: _Events = 0
    running: _Sequences = 0
    waiting: _Sequences = 0
    prefilling: _Sequences = 0
    peak: _Sequences = 0
    batch_seen: _Sequences = 0
    gpu_count: _Sequences = 0
    ctx_max: _SomeTokens = 1
    kv_tokens_total: _Tokens = 0
    kv_blocks_total: _Tokens = 0
    kv_blocks_kept: _Tokens = 0
    kv_groups: Annotated[list[_KvGroup], Meta(max_length=_MAX_GROUPS)] = []
    kv_cache_usage: _Share = 0
    preemptions_total: _Events = 0
    requests_total: _Events = 0
    steps_total: _Events = 0
    generated_tokens_total: _Events = 0
    busy_seconds_total: _Seconds = 0
    prefill_tokens_per_s: Annotated[float, Meta(ge=0, le=_MAX_TOKENS)] | None = None
    step_time: _StepTime | None = None
    steps_by_batch: _Steps = {}
    last_batches: Annotated[list[_Sequences], Meta(max_length=_MAX_ITEMS)] = []
    prefill: _Prefill | UnsetType = UNSET
    prefix_cache: _PrefixCache | UnsetType = UNSET
    models: _Names = []
    lora: _Lora | UnsetType = UNSET
    supported_workloads: _Names = []
    leases: list[Annotated[str, Meta(pattern=LEASE_PATTERN)]] = []
    queue: _Object = {}
    rate_limits: _Object = {}
    features: _Object = {}


# Parsed entry by entry: only those that differ from the state before are checked again.
_STEPS_FIELD: Final = "steps_by_batch"

_REQUIRED_FIELDS: Final = ("epoch", "slots_total", "foreign", "peak", "profile", "measurement_type")


def parsed(data: bytes) -> Document:
    """Parses an event's data. Raises InvalidReport for anything but a JSON object."""
    try:
        decoder = _STRICT_DECODER if _may_have_large_number(data) else _FAST_DECODER
        value = decoder.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidReport(f"{_shown(data)} is not valid JSON: {_shown(error)}") from None
    if not isinstance(value, dict):
        raise InvalidReport(f"{_shown(value)} is not a JSON object")
    return value


def checked(fields: Document, *, whole: bool, before: Document | None = None) -> Document:
    """Checks and returns `fields`. `whole`: the required fields must be present. `before`: the
    state that they change, checked already. Raises InvalidReport."""
    new, steps = fields, fields.get(_STEPS_FIELD)
    if before is not None and isinstance(steps, dict):
        known = before.get(_STEPS_FIELD, {})
        changed = {batch: each for batch, each in steps.items() if known.get(batch) != each}
        new = fields | {_STEPS_FIELD: changed}
    _check(new, Fields)
    if whole:
        for name in _REQUIRED_FIELDS:
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
    offer = _check(fields, Offer)
    return offer.cost, offer.number


def _check(fields: Document, expected: type[_T]) -> _T:
    try:
        return msgspec.convert(fields, expected)
    except msgspec.ValidationError as error:
        rule, _, place = str(error).replace("Expected", "it must be").partition(" - at ")
        found = _PLACE.search(place)
        if found is not None:
            name, within = found.groups()
            rule = f"{name} is {_shown(fields[name])}: {rule}{within and f' at {within}'}"
        raise InvalidReport(rule) from None


# Where in the fields an error is: a field, and the place within it.
_PLACE: Final = re.compile(r"\$\.(\w+)(.*)`")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_SHOWN_CHARACTERS]} is not a finite number")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


# A number that Python reads as infinite has an exponent of three digits or hundreds of digits:
# elsewhere the decoder need not look at each. With all digits alike, to search for these words
# takes less than half of the time of a regular expression, and a seventh in a large event.
_DIGITS_ALIKE: Final = bytes.maketrans(b"123456789E", b"000000000e")
_LARGE_NUMBERS: Final = b"e000", b"e+000", 200 * b"0"


def _may_have_large_number(data: bytes) -> bool:
    alike = data.translate(_DIGITS_ALIKE)
    return any(each in alike for each in _LARGE_NUMBERS)


_STRICT_DECODER: Final = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)
_FAST_DECODER: Final = json.JSONDecoder(parse_constant=_no_number)


def _shown(value: Any) -> str:
    """Returns a value, shortened for messages; an integer may have more digits than Python
    prints."""
    if type(value) is int and value.bit_length() > 256:
        return f"an integer of about {int(value.bit_length() * math.log10(2))} digits"
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."

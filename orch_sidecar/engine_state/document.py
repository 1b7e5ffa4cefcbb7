"""Parses and checks an engine's state events.

Pure. Every field of a checked document has the type and range that `fields` requires. Unknown
fields are kept unchanged, and an engine of another version may omit all but the required fields.
One invalid field makes the whole report invalid: where one number is nonsense, others may be, too.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from orch_sidecar.engine_state.fields import Fields, Offer

Document = dict[str, Any]
_T = TypeVar("_T")

_SHOWN_CHARACTERS: Final = 80  # characters of a value in a message


class InvalidReport(ValueError):
    """An invalid report; the message names the field, its value and the rule."""


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

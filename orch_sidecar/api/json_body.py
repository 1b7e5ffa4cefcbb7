"""Parses the body of a request into a JSON object, exactly as vLLM would, or rejects it.

Pure. Anything that could be read in two ways (a duplicate key) is an error. The time to parse is
bounded by the size of the body; of a large one only the outline is parsed.

There are two parsers. The strict one is that of vLLM, and looks for duplicate keys. The fast one is
for documents of few levels. It gives the same values, or fails where the strict one decides; below
the top level both keep the last of duplicates.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Final

import msgspec

from orch_sidecar.api.refusal import Reason, Refusal

Document = dict[str, Any]

UTF_8: Final = ("utf-8", "utf-8-sig")  # as json.detect_encoding names it


class InvalidBody(Exception):
    """A body that is rejected; has the refusal."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.refusal = Refusal(Reason.INVALID_REQUEST, message, param)


class _Repeating(dict[str, Any]):
    """An object with a duplicate key."""

    pairs: list[tuple[str, Any]]

    def repeated(self) -> str:
        """Returns the first key that is repeated."""
        seen: set[str] = set()
        for key, _ in self.pairs:
            if key in seen:
                return key
            seen.add(key)
        raise AssertionError("no key is repeated")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) == len(pairs):
        return mapping
    repeating = _Repeating(mapping)
    repeating.pairs = pairs
    return repeating


def _object_outlined(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    # Below the top level all names of an outline are empty.
    return mapping if len(mapping) == 1 and "" in mapping else _object(pairs)


# Types that contain no other values.
_LEAVES: Final = frozenset((str, int, float, bool, type(None)))

# Of what the fast parser takes: tools of a chat have eight. The tree of its type doubles with each.
_FAST_LEVELS: Final = 8

# Built once: `json.loads` with a hook would build a decoder for each body.
_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object)
_OUTLINE_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object_outlined)


# A name in an object: equal to no other, so that a parsed object has duplicates, too. Made by the
# parser without a step of Python; `kind`: the type of names that it asks for.
_Name: Final[Any] = msgspec.defstruct("_Name", [("kind", type), ("text", str)], eq=False, gc=False)


@cache
def _fast_decoder() -> msgspec.json.Decoder[dict[Any, Any]]:
    """Makes the fast parser, once. Of its type follows that what it parses is not deeper: to look
    for that in the body, or in the document, would take half as long as parsing it."""
    value: Any = str | int | float | bool | None
    for _ in range(_FAST_LEVELS - 1):
        value = str | int | float | bool | list[value] | dict[str, value] | None
    return msgspec.json.Decoder(dict[object, value], dec_hook=_Name)


def parse(body: bytes, max_depth: int, *, outlined: bool = False) -> dict[str, Any]:
    """Returns the object in a body. `outlined`: the body is an outline. Raises InvalidBody."""
    if not outlined and max_depth >= _FAST_LEVELS and (found := _parsed_fast(body)) is not None:
        return found
    may_be_deeper = _opens_more_than(max_depth, body)
    try:
        # As json.loads does for bytes, and so vLLM.
        is_utf_8 = body[:1] == b"{" and body[1:2] > b"\0"  # by its rules
        encoding = "utf-8" if is_utf_8 else json.detect_encoding(body)
        text = body.decode(encoding, "surrogatepass").strip(" \t\n\r")
        document, end = (_OUTLINE_DECODER if outlined else _DECODER).raw_decode(text)
        if end != len(text):
            raise json.JSONDecodeError("Extra data", text, end)
    except RecursionError:
        raise InvalidBody(f"the body must not be nested deeper than {max_depth} levels") from None
    except json.JSONDecodeError as error:
        # A position in an outline is not the position in the body.
        raise InvalidBody(
            f"the body is not valid JSON: {error.msg if outlined else error}"
        ) from None
    except ValueError as error:  # also UnicodeDecodeError, and integers of thousands of digits
        text = str(error).partition(";")[0]  # Python's remedy is none for a client
        raise InvalidBody(f"the body is not valid JSON: {text}") from None
    if not isinstance(document, dict):
        raise InvalidBody(f"the body must be a JSON object, not {kind_of(document)}")
    if isinstance(document, _Repeating):
        name = document.repeated()
        raise InvalidBody(
            f"{name[:100]!r} must not occur more than once in the same object", name[:100]
        )
    if may_be_deeper and _is_deeper_than(document, max_depth):
        raise InvalidBody(f"the body must not be nested deeper than {max_depth} levels")
    return document


def _parsed_fast(body: bytes) -> dict[str, Any] | None:
    """Returns the object in a body without duplicate keys, else None."""
    try:
        named = _fast_decoder().decode(body)
    # Not JSON, or JSON that is deeper, or that the strict parser may accept.
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    document: dict[str, Any] = {}
    for name, value in named.items():
        document[name.text] = value
    return document if len(document) == len(named) else None


def _opens_more_than(most: int, body: bytes) -> bool:
    """Returns whether a body has more opening brackets than that. Counting all of them takes five
    instructions for each byte, finding the next one a fraction of that."""
    opened = 0
    for bracket in (b"{", b"["):
        at = body.find(bracket)
        while at >= 0:
            opened += 1
            if opened > most:
                return True
            at = body.find(bracket, at + 1)
    return False


def _is_deeper_than(document: Any, levels: int) -> bool:
    layer = [document]
    for _ in range(levels):
        below: list[Any] = []
        for value in layer:
            values = value if type(value) is list else value.values()
            if not _LEAVES.issuperset(map(type, values)):
                below += [each for each in values if type(each) not in _LEAVES]
        layer = below
        if not layer:
            return False
    return True


def kind_of(value: Any) -> str:
    """Returns what JSON calls the type of a value, with its article."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


def shown(value: Any) -> str:
    """Returns a value for an error text, shortened: it may be a prompt in the wrong field."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**18:
        return "an integer of that size"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{kind_of(value)} of {len(text)} characters"

"""Parses the body of a request into its fields, exactly as vLLM would, or rejects it.

Pure. Anything that could be read in two ways is an error: a field that the engine sees and this
does not could cost more than was admitted.

Of JSON the time to parse is bounded by the size of the body; of a large one only the outline is
parsed. There are two parsers. The strict one is that of vLLM, and looks for duplicate keys. The
fast one is for documents of few levels. It gives the same values, or fails where the strict one
decides; below the top level both keep the last of duplicates.

A multipart form could be read in several ways (a boundary in a line of its own, names with escapes,
a character set), so only what clients write is accepted. Files stay where they are.
"""

from __future__ import annotations

import json
import re
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


def parse_json(body: bytes, max_depth: int, *, outlined: bool = False) -> dict[str, Any]:
    """Returns the object in a body. `outlined`: the body is an outline. Raises InvalidBody."""
    if (found := parsed_fast(body, max_depth)) is not None:
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


def parsed_fast(body: bytes, max_depth: int) -> dict[str, Any] | None:
    """Returns the object in a body of few levels and without duplicate keys, else None."""
    if max_depth < _FAST_LEVELS:
        return None
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


_MAX_PARTS: Final = 65
_MAX_HEAD_BYTES: Final = 4096
_MAX_VALUE_BYTES: Final = 1 << 20

_FORM_TYPE: Final = re.compile(
    r'multipart/form-data; ?boundary=(?:"([^"\\]{1,70})"|([^\s";,]{1,70}))'
)
_PART_HEAD: Final = re.compile(
    rb'content-disposition: ?form-data; ?name="([^"\\\r\n]{1,200})"'
    rb'(; ?filename="(?:[^"\\\r\n]|\\[^\r\n])*")?'
    rb"(?:\r\ncontent-(?:type|length|transfer-encoding):[^\r\n]*)*",
    re.IGNORECASE,
)
# The same, where the type comes before the name.
_PART_TYPE: Final = re.compile(rb"(?:content-type:[^\r\n]*\r\n)?", re.IGNORECASE)


def parse_form(body: bytes, content_type: str) -> Document:
    """Returns the texts of a form by their names; of names that end with `[]`, none. A name that
    is used twice, a field that is not in UTF-8, or another way to write a form raises
    InvalidBody."""
    typed = _FORM_TYPE.fullmatch(content_type)
    if typed is None:
        raise InvalidBody(
            "the body must be a form: its Content-Type must be multipart/form-data with a boundary "
            f"alone, not {content_type[:100]!r}"
        )
    delimiter = b"\r\n--" + (typed[1] or typed[2]).encode("latin-1", "replace")
    if not body.startswith(delimiter[2:]):
        raise _unreadable("does not begin with the boundary of its Content-Type")
    fields: Document = {}
    names = set()
    at = len(delimiter) - 2
    for _ in range(_MAX_PARTS):
        if body.startswith(b"--", at):
            return fields
        end = body.find(delimiter, at)
        if end < 0 or not body.startswith(b"\r\n", at):
            raise _unreadable("has a part without an end")
        name, is_file, start = _head(body, at + 2, end)
        if not name.endswith("[]"):
            if name in names:
                raise InvalidBody(f"{name[:100]!r} must not occur more than once", name[:100])
            names.add(name)
            if not is_file:
                if end - start > _MAX_VALUE_BYTES:
                    raise InvalidBody(f"{name[:100]!r} is too long for a text", name[:100])
                fields[name] = _text(body[start:end])
        at = end + len(delimiter)
    raise _unreadable(f"has more than {_MAX_PARTS - 1} parts")


def _head(body: bytes, at: int, end: int) -> tuple[str, bool, int]:
    """Returns the name of a part, whether it is a file, and where its content begins."""
    blank = body.find(b"\r\n\r\n", at, min(end, at + _MAX_HEAD_BYTES))
    typed = _PART_TYPE.match(body, at)
    assert typed is not None  # it matches nothing, too
    head = None if blank < 0 else _PART_HEAD.fullmatch(body, typed.end(), blank)
    if head is None:
        raise _unreadable("has a part without a plain name")
    return _text(head[1]), head[2] is not None, blank + 4


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _unreadable("has a name or a text that is not UTF-8") from None


def _unreadable(what: str) -> InvalidBody:
    return InvalidBody(f"the form {what}")

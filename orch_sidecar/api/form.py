"""Reads the fields of a multipart form, as the engine's parser would, or rejects it.

Pure. A form could be read in several ways (a boundary in a line of its own, names with escapes, a
character set), and a field that the engine sees and this does not could cost more than was
admitted: so only what clients write is accepted. Files stay where they are.
"""

from __future__ import annotations

import re
from typing import Final

from orch_sidecar.api.json_body import Document, InvalidBody

_MAX_PARTS: Final = 65
_MAX_HEAD_BYTES: Final = 4096
_MAX_VALUE_BYTES: Final = 1 << 20

_TYPE: Final = re.compile(r'multipart/form-data; ?boundary=(?:"([^"\\]{1,70})"|([^\s";,]{1,70}))')
_HEAD: Final = re.compile(
    rb'content-disposition: ?form-data; ?name="([^"\\\r\n]{1,200})"'
    rb'(; ?filename="(?:[^"\\\r\n]|\\[^\r\n])*")?'
    rb"(?:\r\ncontent-(?:type|length|transfer-encoding):[^\r\n]*)*",
    re.IGNORECASE,
)
# The same, where the type comes before the name.
_TYPE_LINE: Final = re.compile(rb"(?:content-type:[^\r\n]*\r\n)?", re.IGNORECASE)


def parse(body: bytes, content_type: str) -> Document:
    """Returns the texts of a form by their names; of names that end with `[]`, none. A name that
    is used twice, a field that is not in UTF-8, or another way to write a form raises
    InvalidBody."""
    typed = _TYPE.fullmatch(content_type)
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
    typed = _TYPE_LINE.match(body, at)
    assert typed is not None  # it matches nothing, too
    head = None if blank < 0 else _HEAD.fullmatch(body, typed.end(), blank)
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

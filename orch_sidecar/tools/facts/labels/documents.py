"""Parses JSON that somebody else wrote or signed: an engine, an operator, another tool.

Pure. Anybody can sign something with a key of their own: what does not belong there is refused
before it is computed with.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn, TypeVar

from msgspec import MsgspecError
from pydantic import AliasPath, BaseModel, Field, ValidationError

from orch_sidecar.tools.facts.tables.table import decoded

# Those of 64 bits. An integer of more is no count, and may be too large for a float.
_MOST_DIGITS: Final = 20
_SHOWN_CHARACTERS: Final = 60
_TOO_DEEP: Final = "it is nested too deeply"
_Model = TypeVar("_Model", bound=BaseModel)


def at(path: str, **more: Any) -> Any:
    """Declares a field by its place in the document: `config.models.0.name`."""
    first, *rest = path.split(".")
    steps = (int(step) if step.isdigit() else step for step in rest)
    return Field(validation_alias=AliasPath(first, *steps), **more)


def first_problem(error: ValidationError) -> str:
    """Describes the first wrong field that pydantic found: its place, what is there, the rule."""
    wrong = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(map(str, wrong["loc"]))
    rule = wrong["msg"].removeprefix("Value error, ")
    if wrong["type"] == "missing":
        return f"{place} is missing"
    if wrong["type"] in ("model_type", "dataclass_type"):  # its text names the class
        rule = "must be an object"
    return f"{place or 'it'} is {repr(wrong['input'])[:_SHOWN_CHARACTERS]}: {rule}"


@contextmanager
def named(what: str) -> Iterator[None]:
    """Puts `what` before the text of a ValueError or an error of msgspec's, which was no ValueError
    before 0.21, or before the first problem of pydantic's."""
    try:
        yield
    except ValidationError as error:
        raise ValueError(f"{what}{first_problem(error)}") from None
    except (ValueError, MsgspecError) as error:
        raise ValueError(f"{what}{error}") from None
    except RecursionError:
        raise ValueError(f"{what}{_TOO_DEEP}") from None


def parsed_as(model: type[_Model], document: object, what: str) -> _Model:
    """Returns what a model has of a document. Raises ValueError, which begins with `what`."""
    with named(what):
        return model.model_validate(document)


def parse_json(payload: bytes, what: str) -> Any:
    """Returns what every reader of this JSON reads: no name is there twice. Raises ValueError,
    which begins with `what`."""
    with named(what):
        return _STRICT.decode(payload.decode())


def documents_in(name: str, content: bytes) -> Iterator[tuple[int, Any]]:
    """Parses a file with at least one document in UTF-8, with or without byte order marks. Yields
    each with the line in which it begins: a file may be larger than what is made of it. Raises
    ValueError."""
    text, at, line = decoded(name, content, "utf-8-sig"), 0, 1
    try:
        while (found := _NO_SPACE.search(text, at)) is not None or not at:
            begin = len(text) if found is None else found.start()
            line, at = line + text.count("\n", at, begin), begin
            document, end = _DECODER.raw_decode(text, at)
            yield line, document
            line, at = line + text.count("\n", at, end), end
    except json.JSONDecodeError as error:
        line, rule = error.lineno, "it ends too early" if error.pos == len(text) else error.msg
    except ValueError as error:  # an integer, or a name that is there twice
        rule = str(error)
    except RecursionError:
        rule = _TOO_DEEP
    else:
        return
    raise ValueError(f"{name}:{line}: invalid JSON: {rule}")


def _of_different_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice[:40]!r} is there twice in one object")
    return found


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"{digits[:40]} has more than {_MOST_DIGITS} digits")
    return int(digits)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_NO_SPACE: Final = re.compile(r"[^\s\ufeff]")
_DECODER: Final = json.JSONDecoder(parse_int=_integer, object_pairs_hook=_of_different_names)
_STRICT: Final = json.JSONDecoder(
    parse_int=_integer, parse_constant=_no_number, object_pairs_hook=_of_different_names
)

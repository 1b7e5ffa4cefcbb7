"""What all models of manifests share: camelCase names, nothing unknown, errors that name the place.

It does not know any kind of object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

# A field that a cluster acts on and this harness does not: scheduling, quotas, image pulls. It
# stands in the models so that a manifest may have it; that it has no effect is said by its type.
Unused = Any


class SpecError(ValueError):
    """A manifest says something that is wrong, or that this harness does not do."""


class Part(BaseModel):
    """One mapping of a manifest. Types are strict, as the API server's are: `value: 1` is wrong."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel)


P = TypeVar("P", bound=Part)


def read(model: type[P], data: Mapping[str, Any], where: str) -> P:
    """`data` as the model.

    Raises:
        SpecError: a field is unknown, missing or of the wrong type; `where` opens the message.
    """
    try:
        return model.model_validate(dict(data))
    except ValidationError as wrong:
        said = "; ".join(
            f"{_path(error['loc'])}: {_reason(error['type'], error['msg'])}"
            for error in wrong.errors()
        )
        raise SpecError(f"{where}: {said}") from wrong


def _path(location: tuple[int | str, ...]) -> str:
    """`spec.containers[0].image`, as kubectl's errors write it."""
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".") or "the object"


def _reason(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "is not a field that this harness knows; it would be ignored silently"
    return message

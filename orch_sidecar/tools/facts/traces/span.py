"""One span, whichever way it was told.

Pure. Knows what every tracing backend says of a span, and nothing of what this project's spans
mean. Times are nanoseconds since 1970, as OTLP has them: a float of seconds would round them to
a quarter of a microsecond.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

# A map within an attribute comes as pairs.
Value: TypeAlias = "str | bool | int | float | bytes | tuple[Value, ...] | None"

SERVICE = "service.name"


class Kind(StrEnum):
    """OpenTelemetry's kinds of spans."""

    UNSPECIFIED = "unspecified"
    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"
    PRODUCER = "producer"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class Link:
    """Another span that this one has to do with. Ids as in `Span`."""

    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True)
class Span:
    """A span that has ended.

    Ids are lower case hexadecimal, 32 and 16 digits. `parent_id`: None of the first one; it may
    be that of a span that nobody has. `resource`: the attributes of whoever made it.
    """

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: Kind
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    resource: Mapping[str, Value]
    links: tuple[Link, ...] = ()
    error: bool = False

    @property
    def service(self) -> str:
        return str(self.resource.get(SERVICE, ""))

    def text(self, name: str) -> str | None:
        """An attribute that is text; None where there is none, or it is empty."""
        value = self.attributes.get(name)
        return None if value is None or value == "" else str(value)

    def whole(self, name: str) -> int | None:
        """An attribute that is a whole number. Raises ValueError if it is none."""
        value = self.number(name)
        if value is None:
            return None
        if value != int(value):
            raise self._wrong(name, "a whole number")
        return int(value)

    def number(self, name: str) -> float | None:
        """An attribute that is a number. Raises ValueError if it is none."""
        value = self.attributes.get(name)
        if value is None:
            return None
        # Some stores keep every attribute as text.
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self._wrong(name, "a number")
        try:
            number = float(value)
        except ValueError:
            raise self._wrong(name, "a number") from None
        if not math.isfinite(number):
            raise self._wrong(name, "a finite number")
        return number

    def flag(self, name: str) -> bool:
        """Whether an attribute is true; it is not where there is none. Raises ValueError."""
        value = self.attributes.get(name, False)
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return value == "true"
        raise self._wrong(name, "true or false")

    def _wrong(self, name: str, rule: str) -> ValueError:
        value = self.attributes[name]
        return ValueError(
            f"span {self.span_id} ({self.name}) of trace {self.trace_id}: "
            f"{name} is {value!r}, must be {rule}"
        )

"""A span, whatever backend it was read from.

Pure. Knows what every tracing backend reports about a span, and nothing about the meaning of this
project's spans. Times are nanoseconds since 1970, as in OTLP: a float of seconds would round them
to a quarter of a microsecond.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

# A map within an attribute is a tuple of pairs.
Value: TypeAlias = "str | bool | int | float | bytes | tuple[Value, ...] | None"

SERVICE = "service.name"


class Kind(StrEnum):
    """OpenTelemetry's span kinds."""

    UNSPECIFIED = "unspecified"
    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"
    PRODUCER = "producer"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class Link:
    """A reference to another span. Ids as in `Span`."""

    trace_id: str
    span_id: str


@dataclass(frozen=True, slots=True)
class Span:
    """A span that has ended.

    Ids are lower case hexadecimal, 32 and 16 digits. `parent_id`: None for a root span; the parent
    may be missing from the trace. `resource`: the attributes of the process that made the span.
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
        """Returns an attribute as text; None if it is missing or empty."""
        value = self.attributes.get(name)
        return None if value is None or value == "" else str(value)

    def whole(self, name: str) -> int | None:
        """Returns an integer attribute, None if it is missing. Raises ValueError."""
        value = self.number(name)
        if value is None:
            return None
        if value != int(value):
            raise self._invalid(name, "a whole number")
        return int(value)

    def number(self, name: str) -> float | None:
        """Returns a numeric attribute, None if it is missing. Raises ValueError."""
        value = self.attributes.get(name)
        if value is None:
            return None
        # Some storage backends keep every attribute as text.
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self._invalid(name, "a number")
        try:
            number = float(value)
        except ValueError:
            raise self._invalid(name, "a number") from None
        if not math.isfinite(number):
            raise self._invalid(name, "a finite number")
        return number

    def flag(self, name: str) -> bool:
        """Returns a boolean attribute, False if it is missing. Raises ValueError."""
        value = self.attributes.get(name, False)
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return value == "true"
        raise self._invalid(name, "true or false")

    def _invalid(self, name: str, rule: str) -> ValueError:
        value = self.attributes[name]
        return ValueError(
            f"span {self.span_id} ({self.name}) of trace {self.trace_id}: "
            f"{name} is {value!r}, must be {rule}"
        )

"""A span, whatever backend it was read from.

Pure. Knows what every tracing backend reports about a span, and nothing about the meaning of this
project's spans. Times are nanoseconds since 1970, as in OTLP: a float of seconds would round them
to a quarter of a microsecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from orch_sidecar.tools.facts.labels.documents import first_problem

Value: TypeAlias = "str | bool | int | float | None"

SERVICE = "service.name"


def format_time(time_ns: int) -> str:
    """Formats a time as RFC 3339, cut off after the milliseconds."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1_000_000:03}Z"


class Attributes(BaseModel):
    """Attributes of a span by their names. Some storage backends keep every one as text."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True)


Parsed = TypeVar("Parsed", bound=Attributes)


@dataclass(frozen=True, slots=True)
class Span:
    """A span that has ended.

    Ids are lower case hexadecimal, 32 and 16 digits. `parent_id`: None for a root span; the parent
    may be missing from the trace. `resource`: the attributes of the process that made the span.
    `links`: the ids of the traces and spans that it refers to.
    """

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    is_server: bool
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
    resource: Mapping[str, Value]
    links: tuple[tuple[str, str], ...] = ()

    @property
    def service(self) -> str:
        return str(self.resource.get(SERVICE, ""))

    def parsed(self, model: type[Parsed], **more: object) -> Parsed:
        """Returns the attributes that a model names, and what is given; one that is empty is
        missing. Raises ValueError for an attribute that is not what the model says."""
        stated = {name: value for name, value in self.attributes.items() if value not in (None, "")}
        try:
            return model.model_validate({**stated, **more})
        except ValidationError as error:
            place = f"span {self.span_id} ({self.name}) of trace {self.trace_id}"
            raise ValueError(f"{place}: {first_problem(error)}") from None

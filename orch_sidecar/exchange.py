"""One request and its answer: what is known of it, for headers, metrics, spans and logs.

Pure values. Times are nanoseconds: `_ns` of the wall clock for spans, durations from the
monotonic clock.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from orch_sidecar.openai import Api
from orch_sidecar.reasons import Reason

# Long enough for a UUID with a prefix; the characters that are safe in headers, logs and URLs.
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


class Ending(StrEnum):
    """How an exchange ended, where no Reason says it."""

    OK = "ok"
    ENGINE_ERROR = "engine_error"  # the engine answered, with a status of 400 or more
    CANCELLED = "cancelled"  # the client went away


@dataclass(slots=True)
class Exchange:
    """One request and its answer."""

    api: Api
    route: str
    id: str  # ours, unguessable: X-Orch-Request-Id
    request_id: str  # the client's X-Request-Id, or ours
    correlation_id: str
    method: str = "POST"
    arrived: int = field(default_factory=time.monotonic_ns)
    arrived_ns: int = field(default_factory=time.time_ns)
    model: str = ""
    cost: int = 0
    stream: bool = False
    max_tokens: int | None = None
    lease: str | None = None
    admitted: int | None = None
    first_byte: int | None = None
    status: int = 0
    outcome: Ending | Reason = Ending.CANCELLED
    input_tokens: int | None = None
    output_tokens: int | None = None

    def at_ns(self, monotonic: int) -> int:
        """The wall-clock time of a moment of this exchange."""
        return self.arrived_ns + monotonic - self.arrived

    def server_timing(self) -> str:
        """`Server-Timing`: milliseconds in the queue, and to the first byte of a stream."""
        admitted = self.arrived if self.admitted is None else self.admitted
        parts = [f"queue;dur={(admitted - self.arrived) / 1e6:.2f}"]
        if self.first_byte is not None:
            name, since = ("ttft", self.arrived) if self.stream else ("engine", admitted)
            parts.append(f"{name};dur={(self.first_byte - since) / 1e6:.2f}")
        return ", ".join(parts)


def accept_id(given: str | None) -> str | None:
    """A client's id if it is short and harmless enough to be echoed and logged."""
    return given if given is not None and _ID.fullmatch(given) else None


def new_id() -> str:
    """128 random bits, in hexadecimal (what secrets.token_hex gives, by the shorter way)."""
    return os.urandom(16).hex()

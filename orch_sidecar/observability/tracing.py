"""The interface of traces, and its implementation without an exporter.

Knows headers and records, but no spans: those are in `otlp`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from orch_sidecar.api.headers import TRACEPARENT, TRACESTATE
from orch_sidecar.api.refusal import Reason
from orch_sidecar.observability.record import RequestRecord

# W3C Trace Context: version, trace id, parent id, flags; of these, the lowest bit is `sampled`.
_SAMPLED: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f][13579bdf]"
)


class LossReason(StrEnum):
    """Why spans did not arrive: the label `reason` of a metric."""

    QUEUE_FULL = "queue_full"
    # By the collector: the request as a whole, or spans of it.
    REJECTED = "rejected"
    # The collector was unreachable, overloaded or too slow until the export timed out.
    UNDELIVERED = "undelivered"
    # They could not be encoded.
    INVALID = "invalid"


@dataclass(slots=True)
class SpanCounts:
    """Counts spans by what became of them. `dropped` has every reason from the start."""

    exported: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LossReason, 0))


class Trace:
    """The trace of one request. This class records nothing; subclasses do."""

    __slots__ = ()

    def dispatched(self) -> str:
        """Records that the request is dispatched. Returns the header lines of the trace context,
        for the engine. Bytes that are no UTF-8 are escaped in it (surrogateescape)."""
        return ""

    def retried(self, reason: Reason) -> None:
        """Records that an attempt failed without an answer, and that the request is retried. The
        record still has that attempt."""

    def shared(self, record: RequestRecord) -> Trace:
        """Returns the trace of a generation that requests may share, within this trace.

        `record`: of the generation. The new trace may outlive this one, and has the spans of
        admission and engine instead of it.
        """
        return self

    def joined(self, generation: Trace) -> None:
        """Records that the generation of another request (`shared`) answers this one."""

    def ended(self) -> None:
        """Ends the trace with the outcome of its record."""

    def encode(self) -> bytes:
        """Returns the spans of a trace that has ended as fields of a ScopeSpans; raises if that is
        impossible."""
        return b""


class _Forwarded(Trace):
    """A trace of which nothing but its context, as the client sent it, is passed on."""

    __slots__ = ("_lines",)

    def __init__(self, lines: str) -> None:
        self._lines = lines

    def dispatched(self) -> str:
        return self._lines


class Tracing:
    """Begins traces. This class only forwards contexts; subclasses record."""

    # None: traces are not exported.
    spans: SpanCounts | None = None

    def begin(self, record: RequestRecord, headers: Mapping[str, str]) -> Trace | None:
        """None: there is nothing to trace, and no context to pass on. Need not be called where
        `spans` is None and the headers have no `traceparent`."""
        parent = headers.get(TRACEPARENT)
        if parent is None:
            return None
        record.trace_id = sampled_trace(parent)
        return _Forwarded(
            "".join(
                f"{name}: {value}\r\n"
                for name in (TRACEPARENT, TRACESTATE)
                if (value := headers.get(name))
            )
        )

    async def shutdown(self) -> None:
        """Sends what is queued, within a bound."""


def sampled_trace(traceparent: str) -> bytes:
    """Returns the trace id in this header; empty if the trace is not sampled or the header
    invalid."""
    match = _SAMPLED.fullmatch(traceparent)
    return b"" if match is None else bytes.fromhex(match[1])

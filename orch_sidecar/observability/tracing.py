"""What a request tells its trace, and traces without an exporter.

Knows headers and exchanges, and no spans: those are in `telemetry`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Protocol, Self

from orch_sidecar.api.headers import TRACEPARENT, TRACESTATE
from orch_sidecar.api.refusal import Reason
from orch_sidecar.observability.record import RequestRecord

Headers = list[tuple[bytes, bytes]]

# W3C Trace Context: version, trace id, parent id, flags; of these, the lowest bit is `sampled`.
_SAMPLED: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f][13579bdf]"
)


class Trace(Protocol):
    """The spans of one request."""

    def dispatched(self) -> Headers:
        """It was admitted: the trace headers for the engine."""

    def retried(self, reason: Reason) -> None:
        """What was dispatched came to nothing, and the request goes on: it may wait again."""

    def shared(self, record: RequestRecord) -> Trace:
        """Its decode is to be shared. The trace of that, within this one; may outlive it.

        `record`: of the decode. This one has nothing more to do with admission and engine.
        """

    def joined(self, decode: Trace) -> None:
        """Another request's decode (`shared`) answers this one."""

    def ended(self) -> None:
        """It ended, as its exchange says."""


class Tracing(Protocol):
    """Makes traces."""

    def begin(self, record: RequestRecord, headers: Mapping[str, str]) -> Trace: ...

    def shutdown(self) -> None: ...


class _Passing:
    """No exporter: the client's trace context goes on to the engine as it came."""

    __slots__ = ("_headers",)

    def __init__(self, headers: Headers) -> None:
        self._headers = headers

    def dispatched(self) -> Headers:
        return self._headers

    def retried(self, reason: Reason) -> None:
        return

    def shared(self, record: RequestRecord) -> Self:
        return self

    def joined(self, decode: Trace) -> None:
        return

    def ended(self) -> None:
        return


_PASSING_NOTHING: Final = _Passing([])


class NoTracing:
    """Costs a look-up per request."""

    def begin(self, record: RequestRecord, headers: Mapping[str, str]) -> Trace:
        parent = headers.get(TRACEPARENT)
        if parent is None:
            return _PASSING_NOTHING
        record.trace_id = sampled_trace(parent)
        return _Passing(
            [
                (name.encode(), value.encode("utf-8", "surrogateescape"))
                for name in (TRACEPARENT, TRACESTATE)
                if (value := headers.get(name))
            ]
        )

    def shutdown(self) -> None:
        return


def sampled_trace(traceparent: str) -> int:
    """The trace id in this header, 0 if it says that the trace is not sampled, or nothing."""
    match = _SAMPLED.fullmatch(traceparent)
    return 0 if match is None else int(match[1], 16)

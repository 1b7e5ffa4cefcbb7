"""What a request tells its trace, and traces without an exporter.

Knows headers and exchanges, and no spans: those are in `telemetry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, Self

from multidict import istr

from orch_sidecar.exchange import Exchange
from orch_sidecar.reasons import Reason

Headers = list[tuple[bytes, bytes]]

TRACEPARENT: Final = istr("traceparent")
TRACESTATE: Final = istr("tracestate")


class Trace(Protocol):
    """The spans of one request."""

    @property
    def counts_tokens(self) -> bool:
        """Whether it tells how many there were."""

    def dispatched(self) -> Headers:
        """It was admitted: the trace headers for the engine."""

    def retried(self, reason: Reason) -> None:
        """What was dispatched came to nothing, and the request goes on: it may wait again."""

    def shared(self, exchange: Exchange) -> Trace:
        """Its decode is to be shared. The trace of that, within this one; may outlive it.

        `exchange`: of the decode. This one has nothing more to do with admission and engine.
        """

    def joined(self, decode: Trace) -> None:
        """Another request's decode (`shared`) answers this one."""

    def ended(self) -> None:
        """It ended, as its exchange says."""


class Tracing(Protocol):
    """Makes traces."""

    def begin(self, exchange: Exchange, headers: Mapping[str, str]) -> Trace: ...

    def shutdown(self) -> None: ...


class _Passing:
    """No exporter: the client's trace context goes on to the engine as it came."""

    __slots__ = ("_headers",)

    counts_tokens: Final = False

    def __init__(self, headers: Headers) -> None:
        self._headers = headers

    def dispatched(self) -> Headers:
        return self._headers

    def retried(self, reason: Reason) -> None:
        return

    def shared(self, exchange: Exchange) -> Self:
        return self

    def joined(self, decode: Trace) -> None:
        return

    def ended(self) -> None:
        return


_PASSING_NOTHING: Final = _Passing([])


class NoTracing:
    """Costs a look-up per request."""

    def begin(self, exchange: Exchange, headers: Mapping[str, str]) -> Trace:
        if TRACEPARENT not in headers:
            return _PASSING_NOTHING
        return _Passing(
            [
                (name.encode(), value.encode("utf-8", "surrogateescape"))
                for name in (TRACEPARENT, TRACESTATE)
                if (value := headers.get(name))
            ]
        )

    def shutdown(self) -> None:
        return

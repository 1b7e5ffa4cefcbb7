"""Fetches all traces of an interval from a server that limits results and has no pages.

Pure: the search is a parameter. A search that returns as much as it may can be incomplete, so its
interval is searched again in halves, until no search is full.

Whether a search includes the ends of its interval depends on the storage behind the server: some
include both, others neither (Cassandra's `start_time > ? AND start_time < ?`). So each search
extends a microsecond further on either side, and spans that are found twice count once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from orch_sidecar.tools.facts.traces.span import Span

# Cassandra reads this many spans for each trace of the limit, and returns fewer traces where these
# do not suffice (`limitMultiple`, the same in Jaeger 1.x and 2.x).
_SPANS_PER_TRACE: Final = 3

# (start, end) of an interval, microseconds since 1970 -> the spans of the traces that have a span
# of the service that starts within it.
Search = Callable[[int, int], Iterable[Span]]


class TooManyTraces(Exception):
    """More traces start at one moment than one search may return."""


def all_spans(search: Search, first_us: int, last_us: int, limit: int, service: str) -> list[Span]:
    """Returns the spans of all traces with a span of `service` that starts in the interval.

    The interval includes both ends. `limit`: the largest number of traces that a search returns.
    Each span is returned once. Raises TooManyTraces, and ValueError for an interval that ends
    before it begins.
    """
    if last_us < first_us:
        raise ValueError(f"the interval ends at {last_us} us, before it begins at {first_us} us")
    found: dict[tuple[str, str], Span] = {}
    intervals = [(first_us, last_us)]
    while intervals:
        first, last = intervals.pop()
        start, end = first - 1, last + 1
        spans = list(search(start, end))
        found.update({(span.trace_id, span.span_id): span for span in spans})
        if not _full(spans, start, end, limit, service):
            continue
        if first == last:
            raise TooManyTraces(
                f"the search from {start} to {end} us since 1970 returned its limit of {limit} "
                "traces, and cannot be split further: raise --limit"
            )
        middle = (first + last) // 2
        intervals += [(middle + 1, last), (first, middle)]
    return list(found.values())


def _full(spans: list[Span], start_us: int, end_us: int, limit: int, service: str) -> bool:
    """Returns whether the search may have left traces out."""
    if len({span.trace_id for span in spans}) >= limit:
        return True
    searched = sum(
        span.service == service and start_us <= span.start_ns // 1000 <= end_us for span in spans
    )
    return searched >= _SPANS_PER_TRACE * limit

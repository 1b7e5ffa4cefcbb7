"""All traces of an interval, from a server that gives so many at most and has no pages.

Pure: it is told how to ask. A search that comes back full may have left something out, so its
interval is searched again in halves, until nothing comes back full.

What a search finds at the ends of its interval depends on the storage behind the server: with
some both ends belong to it, with others neither does (Cassandra's `start_time > ? AND
start_time < ?`). So each search reaches a microsecond further on either side than it must, and
what is found twice counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from orch_sidecar.tools.facts.traces.span import Span

# Cassandra searches this many spans for each trace that it may give, and tells of fewer traces
# than it may where these were not enough (`limitMultiple`, the same in Jaeger 1.x and 2.x).
_SPANS_PER_TRACE: Final = 3

# (start, end) of an interval, microseconds since 1970 -> the spans of the traces that have a span
# of the service that starts within it.
Search = Callable[[int, int], Iterable[Span]]


class TooManyTraces(Exception):
    """More traces at one moment than one search may give."""


def all_spans(search: Search, first_us: int, last_us: int, limit: int, service: str) -> list[Span]:
    """The spans of all traces that have a span of `service` that starts in the interval.

    Both ends belong to it. `limit`: how many traces a search gives at most. A span that was found
    several times is in the result once. Raises TooManyTraces, and ValueError for an interval that
    ends before it begins.
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
                f"the search from {start} to {end} us since 1970 came back full: more than one "
                f"search may give ({limit} traces); a higher --limit may do"
            )
        middle = (first + last) // 2
        intervals += [(middle + 1, last), (first, middle)]
    return list(found.values())


def _full(spans: list[Span], start_us: int, end_us: int, limit: int, service: str) -> bool:
    """Whether there may be more than was found."""
    if len({span.trace_id for span in spans}) >= limit:
        return True
    searched = sum(
        span.service == service and start_us <= span.start_ns // 1000 <= end_us for span in spans
    )
    return searched >= _SPANS_PER_TRACE * limit

"""Finds spans by the API of Jaeger's page, `/api/traces`, which every version has.

Pure: who calls it gets the answers from the server. Other backends imitate this API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import urlencode

from orch_sidecar.tools.facts.labels.documents import parse_all
from orch_sidecar.tools.facts.traces.readers.spans import Malformed, spans_of
from orch_sidecar.tools.facts.traces.span import Span

# Cassandra reads this many spans for each trace of the limit, and returns fewer traces where these
# do not suffice (`limitMultiple`, the same in Jaeger 1.x and 2.x).
_SPANS_PER_TRACE: Final = 3

# (start, end) of an interval, microseconds since 1970 -> the spans of the traces that have a span
# of the service that starts within it.
Search = Callable[[int, int], Iterable[Span]]


def search_of(
    get: Callable[[str], bytes],
    url: str,
    service: str,
    limit: int,
    received: Callable[[int], None] = lambda count: None,
) -> Search:
    """Returns a search of a server for spans of a service.

    `get`: returns the answer from a URL. `url`: of the server, with the base path if there is one.
    `received`: gets the number of spans so far after each search, with those that are found twice.
    The search raises UnreadableFile.
    """
    count = 0

    def search(start_us: int, end_us: int) -> list[Span]:
        nonlocal count
        # raw: without the clock skew correction of 2.x (1.x ignores it).
        query = {
            "service": service,
            "start": start_us,
            "end": end_us,
            "limit": limit,
            "raw": "true",
        }
        place = f"{url}/api/traces"
        answer = parse_all(place, get(f"{place}?{urlencode(query)}"))
        try:
            found = [span for _, each in answer for span in spans_of(each)]
        except Malformed as error:
            raise Malformed(f"{place}: {error}") from None
        count += len(found)
        received(count)
        return found

    return search


def all_spans(search: Search, first_us: int, last_us: int, limit: int, service: str) -> list[Span]:
    """Returns the spans of all traces with a span of `service` that starts in the interval.

    The interval includes both ends. `limit`: the largest number of traces that a search returns.
    Each span is returned once. Raises Malformed where more traces start at one moment than a
    search may return.

    A search that returns as much as it may can be incomplete, so its interval is searched again in
    halves, until no search is full. Whether a search includes the ends of its interval depends on
    the storage behind the server: some include both, others neither (Cassandra's `start_time > ?
    AND start_time < ?`). So each search extends a microsecond further on either side, and spans
    that are found twice count once.
    """
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
            raise Malformed(
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

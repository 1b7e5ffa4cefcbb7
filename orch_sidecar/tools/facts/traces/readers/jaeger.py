"""Reads spans from a Jaeger query service over HTTP.

Two APIs return the same traces: `/api/traces`, which Jaeger's UI uses (and which other backends
imitate), and `/api/v3/traces`, which returns OTLP. The first is tried first, since every version
has it; the second where the first is missing.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from pydantic.alias_generators import to_camel

from orch_sidecar.tools.facts.labels.documents import parse_all
from orch_sidecar.tools.facts.tables.table import UnreadableFile
from orch_sidecar.tools.facts.traces.readers.spans import Malformed, spans_of
from orch_sidecar.tools.facts.traces.span import Span, format_time

# The characters of a response that an error message shows.
_SHOWN_CHARACTERS: Final = 300
# Cassandra reads this many spans for each trace of the limit, and returns fewer traces where these
# do not suffice (`limitMultiple`, the same in Jaeger 1.x and 2.x).
_SPANS_PER_TRACE: Final = 3

# (start, end) of an interval, microseconds since 1970 -> the spans of the traces that have a span
# of the service that starts within it.
Search = Callable[[int, int], Iterable[Span]]


class JaegerError(OSError):
    """The traces cannot be read; the message names the URL and the reason."""


class _ApiUnavailable(Exception):
    """The server does not have this API; the message is its response."""


class Jaeger:
    """A client of the query service at a URL."""

    def __init__(self, url: str, *, limit: int, timeout_s: float = 60.0) -> None:
        """`url`: with the base path if there is one. `limit`: of the traces of one search, at least
        2, since a single trace must not fill it."""
        self.url = url
        self._limit = limit
        self._timeout_s = timeout_s
        self._path: str | None = None  # of the API that has answered

    def spans(
        self,
        service: str,
        first_us: int,
        last_us: int,
        received: Callable[[int], None] = lambda count: None,
    ) -> list[Span]:
        """Returns all spans of the traces with a span of `service` that starts in the interval.

        Microseconds since 1970. `received`: gets the number of spans so far after each search, with
        those that are found twice. Raises JaegerError.
        """
        count = 0

        def search(start_us: int, end_us: int) -> list[Span]:
            nonlocal count
            found = self._search(service, start_us, end_us)
            count += len(found)
            received(count)
            return found

        return all_spans(search, first_us, last_us, self._limit, service)

    def _search(self, service: str, start_us: int, end_us: int) -> list[Span]:
        responses = []
        for path in _APIS if self._path is None else (self._path,):
            url, query = f"{self.url}{path}", _APIS[path]
            try:
                spans = _spans(self._get(url, query(service, start_us, end_us, self._limit)))
            except _ApiUnavailable as response:
                responses.append(f"{url} returned {response}")
                continue
            except Malformed as error:
                raise JaegerError(f"{url}: {error}") from None
            self._path = path
            return spans
        raise JaegerError(f"the server has no query API of Jaeger: {'; '.join(responses)}")

    def _get(self, url: str, query: dict[str, str]) -> bytes:
        """Returns the body of a 200, or of a 404 with JSON."""
        request = urllib.request.Request(  # noqa: S310 (the scheme was checked)
            f"{url}?{urlencode(query)}", headers={"Accept": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:  # noqa: S310
                return bytes(response.read())
        except urllib.error.HTTPError as error:
            with error:
                body = error.read()
            if error.code == 404 and body.lstrip().startswith(b"{"):
                return body
            response = f"{error.code} {error.reason}: {_shown(body)}"
            if error.code in (404, 405):
                raise _ApiUnavailable(response) from None
            raise JaegerError(f"{url}: {response}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else repr(error)
            raise JaegerError(f"cannot read {url}: {reason}") from None


def all_spans(search: Search, first_us: int, last_us: int, limit: int, service: str) -> list[Span]:
    """Returns the spans of all traces with a span of `service` that starts in the interval.

    The interval includes both ends. `limit`: the largest number of traces that a search returns.
    Each span is returned once. Raises JaegerError where more traces start at one moment than a
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
            raise JaegerError(
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


def _ui_query(service: str, start_us: int, end_us: int, limit: int) -> dict[str, str]:
    # raw: without the clock skew correction of 2.x (1.x ignores it).
    return {
        "service": service,
        "start": str(start_us),
        "end": str(end_us),
        "limit": str(limit),
        "raw": "true",
    }


def _v3_query(service: str, start_us: int, end_us: int, limit: int) -> dict[str, str]:
    values = {
        "service_name": service,
        "start_time_min": format_time(1000 * start_us, digits=6),
        "start_time_max": format_time(1000 * end_us, digits=6),
        "search_depth": str(limit),
        "raw_traces": "true",
    }
    query = {f"query.{name}": value for name, value in values.items()}
    # The names of 1.x, and of 2.x before 2.20; newer versions use those of proto3's JSON instead
    # (jaeger, docs/apis/api_v3_http.md).
    query["query.num_traces"] = str(limit)
    query |= {f"query.{to_camel(name)}": value for name, value in values.items()}
    return query


def _spans(body: bytes) -> list[Span]:
    """Parses a response: the UI's, or one object with all traces, or (1.x, through its gRPC
    gateway) one for each."""
    try:
        documents = parse_all("the response", body)
    except UnreadableFile:
        raise _ApiUnavailable(f"invalid JSON: {_shown(body)}") from None
    found = []
    for _, document in documents:
        if not isinstance(document, dict) or not {"data", "result", "error"} & set(document):
            raise _ApiUnavailable(f"something other than traces: {_shown(body)}")
        error: Any = document.get("error")
        if isinstance(error, dict) and "No traces found" in str(error.get("message")):
            continue  # with the status 404
        if error is not None:
            raise Malformed(f"the response is an error: {_shown(json.dumps(error).encode())}")
        found += spans_of(document)
    return found


def _shown(body: bytes) -> str:
    line = " ".join(body.decode("utf-8", "replace").split())
    return repr(line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}…")


# The query of a search (service, start_us, end_us, limit), by the path of its API.
_APIS: Final[Mapping[str, Callable[[str, int, int, int], dict[str, str]]]] = {
    "/api/traces": _ui_query,
    "/api/v3/traces": _v3_query,
}

"""A Jaeger query service for tests, with the API, limits and responses of the real one.

Written after jaegertracing/jaeger: `http_handler.go` and `query_parser.go` for what it takes and
answers, `uimodel` for the form of a trace, and `memory/tenant.go` for what a search finds. It
gives no more traces than it is asked for: the newest.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from orch_sidecar.tools.facts.traces.spans import Span, Value
from tests.orch_sidecar.tools.facts.spans import service_of

# The largest limit that it takes.
MOST = 100_000


class ScriptedJaeger:
    """Serves spans. `suffix`: of the names of their services. `failing`: the status and body of
    every answer."""

    def __init__(
        self,
        spans: Iterable[Span] = (),
        *,
        suffix: str = "",
        failing: tuple[int, str] | None = None,
    ) -> None:
        self._suffix = suffix
        self._traces: dict[str, list[Span]] = defaultdict(list)
        for span in spans:
            self._traces[span.trace_id].append(span)
        self._failing = failing
        self.searches = 0
        self.app = web.Application()
        self.app.router.add_get("/api/traces", self._answer)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Its URL."""
        async with TestServer(self.app) as server:
            yield str(server.make_url("")).rstrip("/")

    async def _answer(self, request: web.Request) -> web.Response:
        self.searches += 1
        query = request.query
        if self._failing is not None:
            status, body = self._failing
            return web.Response(status=status, text=body)
        if "service" not in query:
            return _ui_error(400, "parameter 'service' is required")
        limit = int(query.get("limit", "100"))
        if not 0 < limit <= MOST:
            return _ui_error(500, "search depth must be greater than 0 and less than max traces")
        found = self._search(
            query["service"], int(query["start"]) * 1000, int(query["end"]) * 1000, limit
        )
        assert query["raw"] == "true"
        document = {"data": [_ui_trace(trace) for trace in found], "total": 0, "limit": 0}
        return web.json_response({**document, "offset": 0, "errors": None})

    def _search(self, service: str, start_ns: int, end_ns: int, limit: int) -> list[list[Span]]:
        def matches(span: Span) -> bool:
            own = service_of(span) + self._suffix
            return own == service and start_ns <= span.start_ns <= end_ns

        found = [trace for trace in self._traces.values() if any(map(matches, trace))]
        return sorted(found, key=lambda trace: trace[0].start_ns, reverse=True)[:limit]


def export_of(spans: Iterable[Span]) -> dict[str, Any]:
    """Returns an OTLP export of these spans, as JSON."""
    return {
        "resourceSpans": [
            {
                "scopeSpans": [{"scope": {}, "spans": [_otlp_span(span)]}],
            }
            for span in spans
        ]
    }


def _otlp_span(span: Span) -> dict[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id or "",
        "name": span.name,
        "kind": 2 if span.is_server else 1,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _otlp(span.attributes),
        "links": [{"traceId": of.trace_id, "spanId": of.span_id} for of in span.links],
    }


def _otlp(values: Any) -> list[dict[str, Any]]:
    return [{"key": key, "value": _otlp_value(value)} for key, value in values.items()]


def _otlp_value(value: Value) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case _:
            return {"stringValue": value}


def _ui_trace(spans: list[Span]) -> dict[str, Any]:
    """Returns a trace in the UI's form, in which the spans of a service share a process."""
    services = list(dict.fromkeys(map(service_of, spans)))
    return {
        "traceID": spans[0].trace_id,
        "spans": [_ui_span(span, f"p{services.index(service_of(span)) + 1}") for span in spans],
        "processes": {
            f"p{number}": {"serviceName": service, "tags": []}
            for number, service in enumerate(services, start=1)
        },
        "warnings": None,
    }


def _ui_span(span: Span, process: str) -> dict[str, Any]:
    tags = [_tag(key, value) for key, value in span.attributes.items()]
    tags.append(_tag("span.kind", "server" if span.is_server else "internal"))
    references = [("FOLLOWS_FROM", of.trace_id, of.span_id) for of in span.links]
    if span.parent_id is not None:
        references.insert(0, ("CHILD_OF", span.trace_id, span.parent_id))
    return {
        "traceID": span.trace_id,
        "spanID": span.span_id,
        "flags": 1,
        "operationName": span.name,
        "references": [
            {"refType": kind, "traceID": trace_id, "spanID": span_id}
            for kind, trace_id, span_id in references
        ],
        "startTime": span.start_ns // 1000,
        "duration": (span.end_ns - span.start_ns) // 1000,
        "tags": tags,
        "logs": [],
        "processID": process,
        "warnings": None,
    }


def _tag(key: str, value: Value) -> dict[str, Any]:
    names: dict[type, str] = {bool: "bool", int: "int64", float: "float64", str: "string"}
    return {"key": key, "type": names[type(value)], "value": value}


def _ui_error(status: int, text: str) -> web.Response:
    document = {"data": None, "total": 0, "limit": 0, "offset": 0}
    errors = [{"code": status, "msg": text}]
    return web.Response(status=status, text=json.dumps({**document, "errors": errors}))

"""A Jaeger query service for tests, with the API, limits and responses of the real one.

Written after jaegertracing/jaeger: `apiv3/http_gateway.go` for what it takes and answers, and
`memory/tenant.go` for what a search finds. It gives no more traces than it is asked for: the
newest.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from orch_sidecar.tools.facts.traces.span import Kind, Span, Value

# The response to paths outside of the API: a file of the UI.
PAGE = "<!doctype html><html><title>Jaeger UI</title></html>"


class ScriptedJaeger:
    """Serves spans. `streams`: it answers an object for each trace, as 1.x does. `most`: the
    largest limit that it takes. `failing`: the status and body of every answer."""

    def __init__(
        self,
        spans: Iterable[Span] = (),
        *,
        streams: bool = False,
        most: int = 100_000,
        failing: tuple[int, str] | None = None,
    ) -> None:
        self._traces: dict[str, list[Span]] = defaultdict(list)
        for span in spans:
            self._traces[span.trace_id].append(span)
        self._streams = streams
        self._most = most
        self._failing = failing
        self.asked = 0
        self.app = web.Application()
        self.app.router.add_get("/api/v3/traces", self._v3)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Its URL."""
        async with TestServer(self.app) as server:
            yield str(server.make_url("")).rstrip("/")

    async def _v3(self, request: web.Request) -> web.Response:
        self.asked += 1
        query = request.query
        if self._failing is not None:
            status, body = self._failing
            return web.Response(status=status, text=body)
        for name in ("serviceName", "startTimeMin", "startTimeMax", "searchDepth", "rawTraces"):
            assert f"query.{name}" in query
        limit = int(query["query.num_traces"])
        if not 0 < limit <= self._most:
            error = {"httpCode": 500, "message": "search depth must be less than max traces"}
            return web.Response(status=500, text=json.dumps({"error": error}))
        # The parameter names of 1.x.
        found = self._search(
            query["query.service_name"],
            _ns(query["query.start_time_min"]),
            _ns(query["query.start_time_max"]),
            limit,
        )
        if not found:
            error = {"httpCode": 404, "message": "No traces found"}
            return web.Response(status=404, text=json.dumps({"error": error}))
        parts = found if self._streams else [[span for trace in found for span in trace]]
        texts = [json.dumps({"result": export_of(part)}) for part in parts]
        return web.Response(text="\n".join(texts), content_type="application/json")

    def _search(self, service: str, start_ns: int, end_ns: int, limit: int) -> list[list[Span]]:
        def matches(span: Span) -> bool:
            return span.service == service and start_ns <= span.start_ns <= end_ns

        found = [trace for trace in self._traces.values() if any(map(matches, trace))]
        return sorted(found, key=lambda trace: trace[0].start_ns, reverse=True)[:limit]


def export_of(spans: Iterable[Span]) -> dict[str, Any]:
    """Returns an OTLP export of these spans, as JSON."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _otlp(span.resource)},
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
        "kind": list(Kind).index(span.kind),
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _otlp(span.attributes),
        "links": [{"traceId": link.trace_id, "spanId": link.span_id} for link in span.links],
        "status": {"code": 2} if span.error else {},
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


def _ns(text: str) -> int:
    since = datetime.fromisoformat(text) - datetime.fromtimestamp(0, UTC)
    return since // timedelta(microseconds=1) * 1000

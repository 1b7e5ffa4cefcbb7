"""The whole export, from ended traces to a collector that fails first, over both protocols."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from orch_sidecar.observability.otlp import delivery
from orch_sidecar.observability.otlp.delivery import SpanBatcher
from orch_sidecar.observability.otlp.encoder import request_encoder
from orch_sidecar.observability.otlp.trace_queue import EncodedTrace
from orch_sidecar.observability.record import Outcome
from tests.orch_sidecar.observability.otlp.collectors import (
    GRPC,
    HTTP,
    answer,
    failing,
    grpc_receiver,
    http_receiver,
    raw,
    returning,
    settings_to,
    transport_of,
)
from tests.orch_sidecar.observability.otlp.kept import Kept, spans_in, tracing_to
from tests.orch_sidecar.observability.otlp.scripted import NONE
from tests.orch_sidecar.records import record_of

SPANS_OF_A_TRACE = ["admission.wait", "engine.request", "/v1/chat/completions"]


def ended_traces(count: int) -> list[bytes]:
    """Returns traces of three spans each."""
    kept = Kept()
    tracing = tracing_to(kept, {})
    for number in range(count):
        record = record_of(cost=1, request_id=f"request {number}" * 20)
        trace = tracing.begin(record, {})
        record.admitted = record.arrived
        trace.dispatched()
        record.end(Outcome.OK, 200)
        trace.ended()
    return [trace for trace, _ in kept.traces]


@pytest.fixture(params=[HTTP, GRPC])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(delivery, "FIRST_BACKOFF_S", 0.01)
    return str(request.param)


@asynccontextmanager
async def collecting(
    protocol: str, failures: int
) -> AsyncIterator[tuple[int, Sequence[tuple[object, bytes]]]]:
    """Yields the port of a collector that fails twice as often, and the bodies of its requests."""
    if protocol == HTTP:
        unavailable = [answer("503 Service Unavailable"), raw(then="close")] * failures
        async with http_receiver(*unavailable, answer("200 OK")) as http:
            yield http.port, http.requests
    else:
        errors = [failing(grpc.StatusCode.UNAVAILABLE), failing(grpc.StatusCode.ABORTED)]
        with grpc_receiver(*errors * failures, returning()) as receiver:
            yield receiver.port, receiver.requests


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_every_span_arrives_once_whatever_failed_before(
    protocol: str, compression: str
) -> None:
    traces, request_of = ended_traces(40), request_encoder({"service.name": "tests"}, "", "")
    async with collecting(protocol, failures=1) as (port, requests):
        settings = settings_to(port, protocol, COMPRESSION=compression, TIMEOUT="60")
        settings = replace(settings, max_batch_size=60)
        batcher = SpanBatcher(settings, transport_of(settings), request_of)
        for trace in traces:
            batcher.queue.offer(EncodedTrace(trace), 3)
        while batcher.counts.exported < 3 * len(traces):
            assert batcher.counts.dropped == NONE
            await asyncio.sleep(0.01)
        await batcher.close(60)
        bodies = [body for _, body in requests]
    if compression == "gzip" and protocol == HTTP:  # gRPC unpacks by itself
        bodies = [gzip.decompress(body) for body in bodies]
    first, *repeated, second = bodies
    assert repeated == [first, first]  # it failed twice
    assert first != second
    for body in (first, second):
        assert [span.name for span in spans_in(body)] == SPANS_OF_A_TRACE * 20
    assert (first, second) == (request_of(traces[:20]), request_of(traces[20:]))

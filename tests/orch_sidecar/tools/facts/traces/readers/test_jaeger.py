"""Spans from a Jaeger query service, and its errors."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orch_sidecar.tools.facts.traces.readers.jaeger import Jaeger, JaegerError, _spans
from orch_sidecar.tools.facts.traces.span import Kind, Span
from tests.orch_sidecar.tools.facts.scripted_jaeger import ScriptedJaeger
from tests.orch_sidecar.tools.facts.spans import one, real

# All of `real`.
FIRST_US, LAST_US = 1_795_000_000_000_000, 1_796_000_000_000_000

PAGE = "<!doctype html><html><title>Jaeger UI</title></html>"


async def read(url: str, limit: int = 100, service: str = "orch-sidecar") -> list[Span]:
    return await asyncio.to_thread(Jaeger(url, limit=limit).spans, service, FIRST_US, LAST_US)


def in_order(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.trace_id, span.span_id))


@pytest.mark.parametrize("name", ["home", "cloud", "mixed", "offline"])
async def test_reads_the_spans_as_they_were_made(name: str) -> None:
    spans = in_order(real(name))
    async with ScriptedJaeger(spans).running() as url:
        assert in_order(await read(url)) == spans


async def test_reads_a_response_with_an_object_per_trace() -> None:
    spans = in_order(real("cloud"))
    async with ScriptedJaeger(spans, streams=True).running() as url:
        assert in_order(await read(url)) == spans


@pytest.mark.parametrize("limit", [2, 3, 5, 7])
async def test_nothing_is_lost_at_the_limit_of_a_search(limit: int) -> None:
    spans = [*real("home"), *real("mixed"), *real("offline")]
    jaeger = ScriptedJaeger(spans)
    async with jaeger.running() as url:
        found = await read(url, limit)
    key = {(span.trace_id, span.span_id) for span in spans}
    assert {(span.trace_id, span.span_id) for span in found} == key
    assert len(found) == len(key)
    assert jaeger.asked > 20 / limit


async def test_interval_without_traces_has_no_spans() -> None:
    async with ScriptedJaeger().running() as url:
        assert await read(url) == []


async def test_only_traces_with_a_span_of_the_service_in_the_interval_are_found() -> None:
    near, far = one(1, 1_795_500_000, 1_795_500_001), one(2, 1_700_000_000, 1_700_000_001)
    unassigned = [replace(span, trace_id="e" * 32) for span in near if span.service == "vllm"]
    async with ScriptedJaeger([*near, *far, *unassigned]).running() as url:
        found = await read(url)
        assert {span.trace_id for span in found} == {near[0].trace_id}
        assert {span.service for span in found} == {"orch-sidecar", "vllm"}  # whole traces
        found = await read(url, service="vllm")
        assert {span.trace_id for span in found} == {near[0].trace_id, "e" * 32}


async def test_more_traces_at_one_moment_than_the_limit_are_an_error() -> None:
    spans = [span for number in range(4) for span in one(number, 1_795_500_000, 1_795_500_001)]
    async with ScriptedJaeger(spans).running() as url:
        with pytest.raises(JaegerError, match=r"limit of 4 traces.*--limit"):
            await read(url, limit=4)
        assert len(await read(url, limit=5)) == len(spans)


async def test_a_base_path_belongs_to_the_url() -> None:
    jaeger, outer = ScriptedJaeger(real("cloud")), web.Application()
    outer.add_subapp("/tracing", jaeger.app)
    async with TestServer(outer) as server:
        url = str(server.make_url("/tracing"))
        assert len({span.trace_id for span in await read(url)}) == 6


async def test_error_response_is_reported_with_its_body() -> None:
    async with ScriptedJaeger(most=10).running() as url:
        with pytest.raises(JaegerError) as raised:
            await read(url, limit=11)
    text = str(raised.value)
    assert text.startswith(f"{url}/api/v3/traces: 500 Internal Server Error: ")
    assert "search depth must be less than max traces" in text


@pytest.mark.parametrize("status", [401, 404, 502])
async def test_response_of_a_proxy_is_reported_with_its_body(status: int) -> None:
    failing = ScriptedJaeger(failing=(status, "<h1>go\n   away</h1>" + "x" * 1000))
    async with failing.running() as url:
        with pytest.raises(JaegerError, match=rf"/traces: {status} .*<h1>go away</h1>x+…'$"):
            await read(url)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, PAGE, "the response is not JSON: '<!doctype html>"),
        (200, '{"data2":1}', "the response is no traces: '{\"data2\":1}'"),
        (404, '{"data2":1}', "the response is no traces"),
        (200, "", "the response is not JSON: ''"),
    ],
)
async def test_response_of_another_server_is_reported(
    status: int, body: str, expected: str
) -> None:
    async with ScriptedJaeger(failing=(status, body)).running() as url:
        with pytest.raises(JaegerError) as raised:
            await read(url)
    assert str(raised.value).startswith(f"{url}/api/v3/traces: {expected}")


async def test_unreachable_server_is_reported() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(JaegerError, match=rf"cannot read {url}/api/v3/traces: .*refused"):
            await read(url)


async def test_server_without_http_is_reported() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-x\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(JaegerError, match=r"cannot read .*BadStatusLine"):
            await read(url)


def test_answer_that_jaegers_own_tests_record_is_read() -> None:
    """`jaeger_answers.json` has it as recorded, with its source."""
    recorded = json.loads(Path(__file__).with_name("jaeger_answers.json").read_text("utf-8"))
    [span] = _spans(json.dumps(recorded["v3"]).encode())
    assert (span.name, span.kind, span.error) == ("foobar", Kind.SERVER, True)
    assert (span.trace_id, span.span_id) == ("1".rjust(32, "0"), "2".rjust(16, "0"))
    assert (span.start_ns, dict(span.resource)) == (0, {})

"""Spans from a Jaeger query service, and its errors."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orch_sidecar.tools.facts.traces.readers.jaeger import Jaeger, JaegerError, _spans
from orch_sidecar.tools.facts.traces.readers.spans import spans_of
from orch_sidecar.tools.facts.traces.span import SERVICE, Kind, Link, Span
from tests.orch_sidecar.tools.facts.scripted_jaeger import PAGE, ScriptedJaeger
from tests.orch_sidecar.tools.facts.spans import one, real

# All of `real`.
FIRST_US, LAST_US = 1_795_000_000_000_000, 1_796_000_000_000_000

BOTH_APIS = pytest.mark.parametrize("api", ["ui", "v3"])


async def read(url: str, limit: int = 100, service: str = "orch-sidecar") -> list[Span]:
    return await asyncio.to_thread(Jaeger(url, limit=limit).spans, service, FIRST_US, LAST_US)


def in_order(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.trace_id, span.span_id))


def to_microseconds(span: Span) -> Span:
    """Returns what Jaeger's own form preserves of a span: microseconds, and a status as a tag."""
    start_us = span.start_ns // 1000
    duration_us = (span.end_ns - span.start_ns) // 1000
    attributes = dict(span.attributes)
    if span.error:
        attributes["otel.status_code"] = "ERROR"
    end_ns = (start_us + duration_us) * 1000
    return replace(span, start_ns=start_us * 1000, end_ns=end_ns, attributes=attributes)


@pytest.mark.parametrize("name", ["home", "cloud", "mixed", "offline"])
async def test_reads_the_same_spans_by_either_api(name: str) -> None:
    spans = in_order(real(name))
    async with ScriptedJaeger(spans, apis=("v3",)).running() as url:
        assert in_order(await read(url)) == spans
    async with ScriptedJaeger(spans, apis=("ui",)).running() as url:
        assert in_order(await read(url)) == [to_microseconds(span) for span in spans]


async def test_reads_a_response_with_an_object_per_trace() -> None:
    spans = in_order(real("cloud"))
    async with ScriptedJaeger(spans, apis=("v3",), streams=True).running() as url:
        assert in_order(await read(url)) == spans


@BOTH_APIS
@pytest.mark.parametrize("limit", [2, 3, 5, 7])
async def test_nothing_is_lost_at_the_limit_of_a_search(api: str, limit: int) -> None:
    spans = [*real("home"), *real("mixed"), *real("offline")]
    jaeger = ScriptedJaeger(spans, apis=(api,))
    async with jaeger.running() as url:
        found = await read(url, limit)
    key = {(span.trace_id, span.span_id) for span in spans}
    assert {(span.trace_id, span.span_id) for span in found} == key
    assert len(found) == len(key)
    # Once one API has worked, the other is not called.
    first = ["page"] if api == "v3" else []
    assert jaeger.asked == first + [api] * (len(jaeger.asked) - len(first))
    assert len(jaeger.asked) > 20 / limit


@BOTH_APIS
async def test_interval_without_traces_has_no_spans(api: str) -> None:
    async with ScriptedJaeger(apis=(api,)).running() as url:
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
    assert text.startswith(f"{url}/api/traces: 500 Internal Server Error: ")
    assert "search depth must be greater than 0 and less than max traces" in text


@pytest.mark.parametrize("status", [401, 502])
async def test_response_of_a_proxy_is_reported_with_its_body(status: int) -> None:
    failing = ScriptedJaeger(failing=(status, "<h1>go\n   away</h1>" + "x" * 1000))
    async with failing.running() as url:
        with pytest.raises(JaegerError, match=rf"/api/traces: {status} .*<h1>go away</h1>x+…'$"):
            await read(url)
    assert failing.asked == ["ui"]


@pytest.mark.parametrize(
    ("status", "body"), [(200, PAGE), (404, "404 page not found"), (200, '{"data2":1}'), (200, "")]
)
async def test_other_server_is_reported_with_the_responses_of_both_paths(
    status: int, body: str
) -> None:
    async with ScriptedJaeger(apis=("ui",), failing=(status, body)).running() as url:
        with pytest.raises(JaegerError) as raised:
            await read(url)
    text = str(raised.value)
    assert text.startswith(f"the server has no query API of Jaeger: {url}/api/traces returned ")
    assert f"{url}/api/v3/traces returned invalid JSON: '<!doctype html>" in text


async def test_unreachable_server_is_reported() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(JaegerError, match=rf"cannot read {url}/api/traces: .*refused"):
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


ANSWERS: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("jaeger_answers.json").read_text(encoding="utf-8")
)


def answered(name: str) -> list[Span]:
    """The spans of an answer, as the client of the query service reads it."""
    return _spans(json.dumps(ANSWERS[name]).encode())


def test_ui_form_of_a_trace_gives_the_same_spans_as_the_export_that_jaeger_made_it_of() -> None:
    exported, shown = spans_of(ANSWERS["otlp_in"]), answered("ui_out")
    assert len(shown) == len(exported) == 2
    for ours, theirs in zip(exported, shown, strict=True):
        # Jaeger keeps microseconds, and the scope as an attribute: all else is the same.
        end_ns = (ours.start_ns // 1000 + (ours.end_ns - ours.start_ns) // 1000) * 1000
        scope = {"otel.scope.name": "telemetrygen"}
        assert theirs == replace(
            ours,
            start_ns=ours.start_ns // 1000 * 1000,
            end_ns=end_ns,
            attributes={**scope, **ours.attributes},
        )
        assert theirs.service == "telemetrygen"
        assert theirs.kind is Kind.SERVER


def test_values_have_their_types() -> None:
    _, typed, *_ = spans_of({"data": [ANSWERS["ui_types"]]})
    assert typed.attributes == {
        "peer.service": "service-y",
        "peer.ipv4": 23456,
        "temperature": 72.5,
        "javascript_limit": 9223372036854775222,  # given as text, beyond what JavaScript counts
        "blob": b"\x00\x0009",
    }
    assert typed.error


def test_parent_is_the_reference_within_the_trace_and_others_are_links() -> None:
    referring = spans_of({"data": [ANSWERS["ui_types"]]})[3]
    trace, parent = "1".rjust(32, "0"), "2".rjust(16, "0")
    assert (referring.trace_id, referring.parent_id) == (trace, parent)
    assert referring.links == (Link("ff".rjust(32, "0"), "ff".rjust(16, "0")), Link(trace, parent))
    assert referring.resource[SERVICE] == "service-y"


def test_answer_of_the_newer_api_is_one_object_with_otlp() -> None:
    [span] = answered("v3")
    assert (span.name, span.kind, span.error) == ("foobar", Kind.SERVER, True)
    assert (span.trace_id, span.span_id) == ("1".rjust(32, "0"), "2".rjust(16, "0"))
    assert (span.start_ns, dict(span.resource)) == (0, {})

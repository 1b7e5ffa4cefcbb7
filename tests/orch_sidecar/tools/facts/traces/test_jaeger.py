"""Spans from a Jaeger query service, and its errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import example, given
from hypothesis import strategies as st

from orch_sidecar.tools.facts.commands.rows import read_url
from orch_sidecar.tools.facts.traces.spans import (
    Link,
    Span,
    all_spans,
    spans_of,
)
from tests.orch_sidecar.tools.facts.scripted_jaeger import MOST, ScriptedJaeger, export_of
from tests.orch_sidecar.tools.facts.spans import one, real, service_of

# All of `real`.
FIRST_US, LAST_US = 1_795_000_000_000_000, 1_796_000_000_000_000


async def read(url: str, limit: int = 100, service: str = "orch-sidecar") -> list[Span]:
    interval = FIRST_US, LAST_US
    return await asyncio.to_thread(all_spans, read_url, url, service, *interval, limit)


def in_order(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.trace_id, span.span_id))


def to_microseconds(span: Span, **scope: str) -> Span:
    """Returns what Jaeger's own form preserves of a span, which has the scope as an attribute."""
    start_us = span.start_ns // 1000
    end_us = start_us + (span.end_ns - span.start_ns) // 1000
    attributes = {**scope, **span.attributes}
    return replace(span, start_ns=start_us * 1000, end_ns=end_us * 1000, attributes=attributes)


def ours(span: Span) -> Span:
    """Returns a span without the kind that Jaeger has among the attributes."""
    named = {key: value for key, value in span.attributes.items() if key != "span.kind"}
    return replace(span, attributes=named)


@pytest.mark.parametrize("name", ["home", "cloud", "mixed", "offline"])
async def test_reads_the_spans_that_were_exported(name: str) -> None:
    spans = in_order(real(name))
    async with ScriptedJaeger(spans).running() as url:
        found = in_order(await read(url))
    assert [ours(span) for span in found] == [to_microseconds(span) for span in spans]


@pytest.mark.parametrize("limit", [2, 3, 5, 7])
async def test_nothing_is_lost_at_the_limit_of_a_search(limit: int) -> None:
    spans = [*real("home"), *real("mixed"), *real("offline")]
    jaeger = ScriptedJaeger(spans)
    async with jaeger.running() as url:
        found = await read(url, limit)
    key = {(span.trace_id, span.span_id) for span in spans}
    assert {(span.trace_id, span.span_id) for span in found} == key
    assert len(found) == len(key)
    assert jaeger.searches > 20 / limit


async def test_only_traces_with_a_span_of_the_service_in_the_interval_are_found() -> None:
    near, far = one(1, 1_795_500_000, 1_795_500_001), one(2, 1_700_000_000, 1_700_000_001)
    unassigned = [replace(span, trace_id="e" * 32) for span in near if service_of(span) == "vllm"]
    async with ScriptedJaeger([*near, *far, *unassigned]).running() as url:
        found = await read(url)
        assert {span.trace_id for span in found} == {near[0].trace_id}
        assert {service_of(span) for span in found} == {"orch-sidecar", "vllm"}  # whole traces
        assert await read(url, service="another") == []
        found = await read(url, service="vllm")
        assert {span.trace_id for span in found} == {near[0].trace_id, "e" * 32}


async def test_more_traces_at_one_moment_than_the_limit_and_a_larger_one_are_errors() -> None:
    spans = [span for number in range(4) for span in one(number, 1_795_500_000, 1_795_500_001)]
    async with ScriptedJaeger(spans).running() as url:
        with pytest.raises(ValueError, match="limit of 4 traces"):
            await read(url, limit=4)
        assert len(await read(url, limit=5)) == len(spans)
        with pytest.raises(ValueError, match=r"500 Internal.*search depth must be greater"):
            await read(url, limit=MOST + 1)


async def test_a_base_path_belongs_to_the_url() -> None:
    jaeger, outer = ScriptedJaeger(real("cloud")), web.Application()
    outer.add_subapp("/tracing", jaeger.app)
    async with TestServer(outer) as server:
        url = str(server.make_url("/tracing"))
        assert len({span.trace_id for span in await read(url)}) == 6


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (401, "<h1>go\n   away</h1>" + "x" * 1000, "cannot read .*/api/traces: 401 .*away</h1>x+$"),
        (404, "404 page not found", "cannot read .*/api/traces: 404 Not Found: 404 page"),
        (200, "<!doctype html>", "/api/traces:1: invalid JSON: "),
        (200, '{"data2":1}', "/api/traces:1: no traces: .*data2"),
        (200, "", "/api/traces:1: invalid JSON: it ends too early"),
    ],
)
async def test_answer_of_another_server_is_reported(status: int, body: str, expected: str) -> None:
    async with ScriptedJaeger(failing=(status, body)).running() as url:
        with pytest.raises(ValueError, match=expected):
            await read(url)


async def test_server_without_http_is_reported() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-x\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ValueError, match=r"cannot read .*BadStatusLine"):
            await read(url)


ANSWERS: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("jaeger_answers.json").read_text(encoding="utf-8")
)


def test_ui_form_of_a_trace_gives_the_same_spans_as_the_export_that_jaeger_made_it_of() -> None:
    exported, answered = spans_of(ANSWERS["otlp_in"]), spans_of(ANSWERS["ui_out"])
    scope = {"otel.scope.name": "telemetrygen"}
    assert [ours(span) for span in answered] == [to_microseconds(e, **scope) for e in exported]
    assert {span.is_server for span in answered} == {True}


def test_values_have_their_types_and_references_outside_of_the_trace_are_links() -> None:
    _, typed, _, referring = spans_of({"data": [ANSWERS["ui_types"]]})[:4]
    assert typed.attributes == {
        "peer.service": "service-y",
        "peer.ipv4": 23456,
        "error": True,
        "temperature": 72.5,
        "javascript_limit": 9223372036854775222,  # given as text, beyond what JavaScript counts
    }
    trace, parent = "1".rjust(32, "0"), "2".rjust(16, "0")
    assert (referring.trace_id, referring.parent_id) == (trace, parent)
    other = Link("ff".rjust(32, "0"), "ff".rjust(16, "0"))
    assert referring.links == (other, Link(trace, parent))


def test_answer_of_the_newer_api_is_one_object_with_otlp() -> None:
    [span] = spans_of(ANSWERS["v3"])
    assert (span.name, span.is_server) == ("foobar", True)
    assert (span.trace_id, span.span_id) == ("1".rjust(32, "0"), "2".rjust(16, "0"))
    assert (span.start_ns, dict(span.attributes)) == (0, {})


# Paging finds every trace, whatever the times of the spans and the storage backend.
BEGIN_US, END_US = 1_000, 1_400


def span(trace: int, place: int, start_ns: int, service: str = "s") -> Span:
    return Span(
        f"{trace:032x}",
        f"{place:016x}",
        None,
        service,
        True,
        start_ns,
        start_ns,
    )


def traces_of(starts: list[list[int]]) -> list[list[Span]]:
    """Returns a trace per list: spans at these times (ns), and a late one of another service."""
    return [
        [*(span(trace, place, ns) for place, ns in enumerate(each)), span(trace, 99, 9**9, "other")]
        for trace, each in enumerate(starts)
    ]


def stored(traces: list[list[Span]], *, ends: bool) -> Callable[[str], bytes]:
    """Searches as a storage of Jaeger's does, by microseconds, and answers with the newest traces.
    `ends`: those of the interval are searched, too."""

    def get(url: str) -> bytes:
        asked = dict(parse_qsl(urlsplit(url).query))
        first, last = int(asked["start"]) + (not ends), int(asked["end"]) - (not ends)

        def matches(each: Span) -> bool:
            return each.name == asked["service"] and first <= each.start_ns // 1000 <= last

        found = [trace for trace in traces if any(map(matches, trace))]
        newest = sorted(found, key=lambda trace: trace[0].start_ns, reverse=True)
        given = [each for trace in newest[: int(asked["limit"])] for each in trace]
        return json.dumps(export_of(given)).encode()

    return get


STARTS = st.lists(
    st.lists(
        st.integers((BEGIN_US - 5) * 1000, (END_US + 5) * 1000)
        # Many at one moment, and around the middles of halves.
        | st.sampled_from([1_000_000, 1_200_000, 1_200_999, 1_201_000, 1_400_000, 1_400_999]),
        min_size=1,
        max_size=6,
    ),
    max_size=40,
)


@pytest.mark.parametrize("ends", [True, False])
@given(starts=STARTS, limit=st.integers(1, 12))
@example(starts=[[1_200_500]], limit=1)
# Around the middle of the interval, with newer traces that the first search returns instead.
@example(starts=[[1_200_000], [1_200_999], [1_350_000], [1_380_000], [1_399_000]], limit=3)
@example(starts=[[1_201_000], [1_201_999], [1_350_000], [1_380_000], [1_399_000]], limit=3)
def test_every_trace_is_found_or_the_limit_is_reported(
    ends: bool, starts: list[list[int]], limit: int
) -> None:
    traces = traces_of(starts)
    try:
        found = all_spans(stored(traces, ends=ends), "", "s", BEGIN_US, END_US, limit)
    except ValueError:
        assert any(_dense(traces, moment, limit) for moment in range(BEGIN_US, END_US + 1))
        return
    keys = [(each.trace_id, each.span_id) for each in found]
    assert len(keys) == len(set(keys))
    within = {
        (each.trace_id, each.span_id)
        for trace in traces
        if any(BEGIN_US <= part.start_ns // 1000 <= END_US for part in trace if part.name == "s")
        for each in trace
    }
    assert within <= set(keys)


def _dense(traces: list[list[Span]], moment_us: int, limit: int) -> bool:
    """Returns whether a search around a microsecond can reach the limit."""
    near = [
        each.trace_id
        for trace in traces
        for each in trace
        if each.name == "s" and moment_us - 1 <= each.start_ns // 1000 <= moment_us + 1
    ]
    return len(set(near)) >= limit


def test_an_interval_without_full_searches_is_searched_once() -> None:
    asked = []

    def get(url: str) -> bytes:
        asked.append(url)
        return json.dumps(export_of([span(1, 1, 1_100_000)])).encode()

    assert len(all_spans(get, "http://jaeger", "s", BEGIN_US, END_US, 2)) == 1
    times = f"start={BEGIN_US - 1}&end={END_US + 1}"
    assert asked == [f"http://jaeger/api/traces?service=s&{times}&limit=2&raw=true"]

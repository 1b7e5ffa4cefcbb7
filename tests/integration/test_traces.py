"""One trace per request, to a real collector: its spans, and what is never in them.

How an answer ended, by its contents: counts on spans and metrics, errors, for every API. However an
engine writes it, whether it is streamed, and whether its decode may be shared.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.integration.otlp import (
    CLIENT,
    ERROR,
    PARENT_ID,
    SERVER,
    TRACE_ID,
    TRACEPARENT,
    Collect,
    Collector,
)
from tests.integration.running import Running, Start, all_ready, pools
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import closes
from tests.integration.wire import Answer
from tests.orch_sidecar.spoken import SPOKEN, Spoken
from tests.patience import HANG_S
from vllm_plugin.contracts.profile import ServiceClass


@pytest.mark.parametrize("collector", ["http/protobuf", "grpc"], indirect=True)
async def test_one_request_is_one_tree_from_the_client_to_the_engine(
    engine: ScriptedEngine, collect: Collect, start: Start
) -> None:
    running = await start()
    fields = [("traceparent", TRACEPARENT), ("tracestate", "a=1"), ("X-Request-Id", "mine")]
    response = await (await running.client()).post(CHAT, fields, n=2, max_tokens=9)
    collector = await collect(running)
    assert len(collector.spans) == 3
    server = collector.one(CHAT)
    wait = collector.one("admission.wait")
    upstream = collector.one("engine.request")
    assert {span.trace_id for span in collector.spans} == {TRACE_ID}
    assert server.parent_id == PARENT_ID
    assert wait.parent_id == upstream.parent_id == server.span_id
    assert (server.kind, upstream.kind) == (SERVER, CLIENT)
    assert server.start_ns <= wait.start_ns <= wait.end_ns <= upstream.start_ns
    assert upstream.start_ns < upstream.end_ns <= server.end_ns
    got = engine.generating[0]
    assert got.header("traceparent") == f"00-{TRACE_ID}-{upstream.span_id}-01"
    assert got.header("tracestate") == "a=1"
    assert [name for name, _ in got.fields].count("traceparent") == 1
    for span in collector.spans:
        assert span.attributes["measurement_type"] == "batched_online"
        assert span.resource["measurement_type"] == "batched_online"
        assert span.resource["service.name"] == "orch-sidecar"
        assert span.status != ERROR
    expected = {
        "http.request.method": "POST", "http.route": CHAT, "http.response.status_code": 200,
        "orch.outcome": "ok", "orch.request_id": "mine", "orch.cost": 2, "orch.stream": False,
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 9, "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 6, "orch.batching": True, "orch.profile": "cloud",
    }  # fmt: skip
    assert {key: server.attributes.get(key) for key in expected} == expected
    assert wait.attributes["orch.cost"] == 2
    lease = got.lease or ""
    assert lease.startswith(upstream.attributes["orch.lease"])
    assert len(upstream.attributes["orch.lease"]) < len(lease) - 20  # not all of the secret
    assert response.header("x-request-id") == "mine"


async def test_no_prompt_and_no_key_is_in_any_span(
    engine: ScriptedEngine, collect: Collect, start: Start
) -> None:
    engine.api_key = "engine-key-XYZZY"
    running = await start(engine_api_key="engine-key-XYZZY")
    client = await running.client()
    fields = [("Authorization", "Bearer client-key-XYZZY"), ("x-api-key", "other-XYZZY")]
    for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
        for stream in (True, False):
            more = {"prompt": "secret-XYZZY"} if path == COMPLETIONS else {"user": "secret-XYZZY"}
            assert (await client.post(path, fields, stream=stream, **more)).status == 200
        assert (await client.post(path, fields, n="secret-XYZZY")).status in (200, 400)
        await client.request("POST", path, b'{"prompt": "secret-XYZZY"', fields)
    await client.request("GET", "/nowhere/secret-XYZZY?key=secret-XYZZY", None, fields)
    collector = await collect(running)
    assert len(collector.spans) > 20
    text = b"".join(collector.requests)
    assert b"XYZZY" not in text
    assert b"one two three" not in text
    assert b"say something" not in text


async def test_server_span_has_the_digest_of_its_run(
    engine: ScriptedEngine, collect: Collect, start: Start
) -> None:
    """The id itself would let others join the run."""
    running = await start()
    secret = "0123456789abcdef" * 2
    client = await running.client()
    await client.post(CHAT, headers=[("X-Orch-Run", secret)])
    await client.post(COMPLETIONS)
    collector = await collect(running)
    digest = hashlib.sha256(secret.encode()).hexdigest()[:32]
    assert collector.one(CHAT).attributes["orch.run"] == digest
    assert "orch.run" not in collector.one(COMPLETIONS).attributes
    assert engine.generating[0].header("x-orch-run") is None
    assert secret.encode() not in b"".join(collector.requests)


async def test_failover_is_a_second_wait_and_a_second_request_in_one_trace(
    collector: Collector, collect: Collect, start: Start, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    running = await all_ready(await start(**pools(a=engine, b=b)))
    engine.scripts.append(closes)
    response = await (await running.client()).post(CHAT, [("traceparent", TRACEPARENT)])
    assert response.status == 200
    found = await collect(running)
    assert {span.trace_id for span in found.spans} == {TRACE_ID}
    names = sorted(span.name for span in found.spans)
    assert names == [CHAT, "admission.wait", "admission.wait", "engine.request", "engine.request"]
    requests = [span for span in found.spans if span.name == "engine.request"]
    lost, made_good = sorted(requests, key=lambda span: span.start_ns)
    assert (lost.attributes["orch.pool"], made_good.attributes["orch.pool"]) == ("a", "b")
    assert (lost.attributes["orch.outcome"], lost.status) == ("engine_failed", ERROR)
    assert made_good.attributes["orch.outcome"] == "ok"
    assert lost.end_ns <= made_good.start_ns
    server = found.one(CHAT)
    assert (server.attributes["orch.pool"], server.attributes["orch.outcome"]) == ("b", "ok")
    ids = {request.header("traceparent") for request in (*engine.generating, *b.generating)}
    assert ids == {f"00-{TRACE_ID}-{span.span_id}-01" for span in requests}


async def test_without_a_collector_the_clients_context_passes_as_it_is(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    client = await sidecar.client()
    fields = [("traceparent", TRACEPARENT), ("tracestate", "a=1,b=\udce9"), ("baggage", "x=y")]
    await client.post(CHAT, fields)
    await client.post(CHAT)
    for name, value in fields:
        got = engine.generating[0].header(name)
        assert got == value.encode("utf-8", "surrogateescape").decode("latin-1")
        assert engine.generating[1].header(name) is None


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("collector_is", ["closed", "silent"])
async def test_collector_that_is_down_slows_and_breaks_nothing(
    engine: ScriptedEngine,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    collector_is: str,
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if collector_is == "silent":
            silent.listen(1)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
        monkeypatch.setattr("orch_sidecar.observability.otlp.spans.SHUTDOWN_S", 0.5)
        running = await start()
        client = await running.client()
        loop = asyncio.get_running_loop()
        worst_s = 0.0
        for _ in range(100):
            begin = loop.time()
            assert (await client.post(stream=True)).status == 200
            worst_s = max(worst_s, loop.time() - begin)
        assert worst_s < HANG_S  # waiting for the collector once would take its timeout
        begin = loop.time()
        await running.stop()
        assert loop.time() - begin < HANG_S


# A decode for one client, and one that others might share.
KINDS: list[dict[str, Any]] = [{}, {"temperature": 0}]

# In the order of the counts.
TOKENS = ("input", "output", "cache_read.input", "reasoning.output")

Script = Callable[[Answer], Awaitable[None]]


def each_event_alone(spoken: Spoken) -> Script:
    """As vLLM writes a stream: each event with a write of its own, and so the end of the body."""

    async def script(answer: Answer) -> None:
        if spoken.stream:
            answer.head(200, EVENT_STREAM)
            events = (event + b"\n\n" for event in spoken.body.split(b"\n\n")[:-1])
            pieces = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
            pieces.append(b"0\r\n\r\n")
        else:
            length = len(spoken.body)
            fields = [("content-type", "application/json"), ("content-length", str(length))]
            answer.head(200, fields, chunked=False)
            pieces = [spoken.body[at : at + 4000] for at in range(0, length, 4000)]
        for piece in pieces:
            await asyncio.sleep(0.001)  # what was written is read by itself
            answer.write(piece)

    return script


@pytest.mark.parametrize("kind", KINDS)
async def test_counts_of_whole_answers_are_on_their_spans_and_in_the_metrics(
    engine: ScriptedEngine, collect: Collect, start: Start, kind: dict[str, Any]
) -> None:
    running = await start()
    client = await running.client()
    counted = [spoken for spoken in SPOKEN if not spoken.failed]
    for spoken in counted:
        engine.scripts.append(each_event_alone(spoken))
        answer = await client.post(spoken.api.path, stream=spoken.stream, **kind)
        assert answer.body == spoken.body, "byte by byte what the engine sent"
    await running.idle()
    metrics = await running.metrics()
    collector = await collect(running)
    paths = {spoken.api.path for spoken in SPOKEN}
    servers = [span for span in collector.spans if span.name in paths]
    servers.sort(key=lambda span: span.start_ns)
    for spoken, span in zip(counted, servers, strict=True):
        counts = tuple(span.attributes.get(f"gen_ai.usage.{name}_tokens") for name in TOKENS)
        assert (span.name, counts) == (spoken.api.path, spoken.counts), spoken.name
        assert (span.attributes["orch.outcome"], span.status) == ("ok", 0)
    labels = '{class="interactive",measurement_type="batched_online",pool="cloud"'
    for name, place in (("input", 0), ("output", 1)):
        total = sum(spoken.counts[place] or 0 for spoken in counted)
        assert metrics[f"orch_{name}_tokens_total{labels}}}"] == total
    uncounted = sum(spoken.counts[:2] == (None, None) for spoken in counted)
    assert metrics[f'orch_answers_total{labels},tokens="unknown"}}'] == uncounted
    assert metrics[f'orch_answers_total{labels},tokens="known"}}'] == len(counted) - uncounted


@pytest.mark.parametrize("kind", KINDS)
async def test_errors_within_streams_are_errors_and_nothing_is_learned_from_them(
    engine: ScriptedEngine, collect: Collect, start: Start, kind: dict[str, Any]
) -> None:
    running = await start()
    client = await running.client()
    failing = [spoken for spoken in SPOKEN if spoken.failed]
    outlook = running.pool.gate.controller.service_times
    learned = outlook.lengths.expected(ServiceClass.INTERACTIVE, None)
    for spoken in failing:
        engine.scripts.append(each_event_alone(spoken))
        answer = await client.post(spoken.api.path, stream=True, **kind)
        assert (answer.status, answer.body) == (200, spoken.body)
    await running.idle()
    assert outlook.lengths.expected(ServiceClass.INTERACTIVE, None) == learned
    metrics = await running.metrics()
    counted = {name: value for name, value in metrics.items() if "orch_requests_total" in name}
    assert sum(counted.values()) == len(failing)
    assert all('outcome="engine_error"' in name for name in counted)
    assert not any(value for name, value in metrics.items() if name.startswith("orch_answers"))
    collector = await collect(running)
    spans = [span for span in collector.spans if span.name != "admission.wait"]
    assert len(spans) == 2 * len(failing)
    for span in spans:
        assert (span.attributes["orch.outcome"], span.status) == ("engine_error", ERROR)
        assert span.attributes["error.type"] == "engine_error"

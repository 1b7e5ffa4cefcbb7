"""The collector of traces: none, switched off, not wanted by the client, or down."""

from __future__ import annotations

import asyncio
import re
import socket

import pytest

from tests.integration.client import CHAT
from tests.integration.otlp import TRACE_ID, TRACEPARENT, Collect
from tests.integration.running import Running, Start
from tests.integration.scripted_engine import ScriptedEngine
from tests.patience import HANG_S


async def test_without_a_collector_the_clients_context_passes_as_it_is(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    client = await sidecar.client()
    fields = [("traceparent", TRACEPARENT), ("tracestate", "a=1,b=2"), ("baggage", "x=y")]
    await client.post(CHAT, fields)
    await client.post(CHAT)
    for name, value in fields:
        assert engine.generating[0].header(name) == value
        assert engine.generating[1].header(name) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")],
)
async def test_tracing_that_is_switched_off_is_off(
    engine: ScriptedEngine, start: Start, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(name, value)
    running = await start()
    await (await running.client()).post(CHAT, [("traceparent", TRACEPARENT)])
    assert engine.generating[0].header("traceparent") == TRACEPARENT


async def test_sampling_is_the_clients_decision(
    engine: ScriptedEngine, collect: Collect, start: Start
) -> None:
    running = await start()
    await (await running.client()).post(CHAT, [("traceparent", TRACEPARENT[:-2] + "00")])
    assert re.fullmatch(
        f"00-{TRACE_ID}-[0-9a-f]{{16}}-00", engine.generating[0].header("traceparent") or ""
    )
    assert (await collect(running)).spans == []


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

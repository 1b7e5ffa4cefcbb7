"""What Prometheus scrapes by OpenTelemetry's names, with exemplars, in both of its formats."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from prometheus_client import Metric

from tests.integration.answers import EVENT_STREAM
from tests.integration.client import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.integration.otlp import http_collector
from tests.integration.running import Running, Start, total
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer
from tests.orch_sidecar.openmetrics import openmetrics

OPENMETRICS = [
    ("Accept", "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3")
]
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
TRACE = "0af7651916cd43dd8448eb211c80319c"


def traceparent(flags: str) -> list[tuple[str, str]]:
    return [("traceparent", f"00-{TRACE}-b7ad6b7169203331-{flags}")]


async def families(running: Running) -> dict[str, Metric]:
    """As a strict reader of OpenMetrics has them."""
    response = await (await running.client()).get("/metrics", OPENMETRICS)
    content_type = response.header("content-type") or ""
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    return {family.name: family for family in openmetrics(response.body)}


def exemplars(found: dict[str, Metric], name: str = "") -> set[str]:
    """Trace ids, in the families whose names begin so."""
    return {
        sample.exemplar.labels["trace_id"]
        for family in found.values()
        if family.name.startswith(name)
        for sample in family.samples
        if sample.exemplar is not None
    }


def counts(found: dict[str, Metric], short: str, **labels: str) -> float:
    """Over all series of `gen_ai_server_…` that have these labels."""
    name = f"gen_ai_server_{short}_seconds"
    return sum(
        sample.value
        for sample in found[name].samples
        if sample.name == f"{name}_count" and labels.items() <= sample.labels.items()
    )


async def paced(answer: Answer) -> None:
    """A stream of four tokens, 30 ms apart, with their number."""
    answer.head(200, EVENT_STREAM)
    for word in ("one", "two", "three", "four"):
        answer.event({"choices": [{"index": 0, "delta": {"content": word}}]})
        await asyncio.sleep(0.03)
    usage = {"prompt_tokens": 7, "total_tokens": 11, "completion_tokens": 4}
    answer.event({"choices": [], "usage": usage})
    answer.event("[DONE]")
    answer.end()


async def test_times_are_those_of_the_stream(engine: ScriptedEngine, sidecar: Running) -> None:
    engine.scripts.append(paced)
    client = await sidecar.client()
    begin_s = time.monotonic()  # uvloop's own clock counts milliseconds
    await client.post(stream=True, **USAGE)
    seen_s = time.monotonic() - begin_s
    found = await families(sidecar)
    sums = {
        name.removeprefix("gen_ai_server_"): sample.value
        for name, family in found.items()
        if name.startswith("gen_ai_server_")
        for sample in family.samples
        if sample.name == f"{name}_sum"
    }
    assert 0.1 < sums["request_duration_seconds"] < seen_s
    assert sums["time_to_first_token_seconds"] < sums["request_duration_seconds"]
    per_token = sums["request_duration_seconds"] - sums["time_to_first_token_seconds"]
    assert sums["time_per_output_token_seconds"] == pytest.approx(per_token / 3, rel=0.05)
    assert found["gen_ai_server_time_per_output_token_seconds"].unit == "seconds"


async def test_operations_models_and_failures_are_distinguished(
    engine: ScriptedEngine, start: Start
) -> None:
    running = await start(queue_capacity=0)
    client = await running.client()
    for path in (CHAT, COMPLETIONS, MESSAGES, RESPONSES):
        await client.post(path, stream=True, **USAGE)
        await client.post(path)

    async def refuse(answer: Answer) -> None:
        answer.json({"error": {}}, 404)

    engine.scripts.append(refuse)
    await client.post(model="made-up")
    await client.post(n=5)
    await client.post(n=0)  # no pool was asked
    await client.get("/v1/models")
    found = await families(running)
    assert counts(found, "request_duration") == 10
    tiny = {"gen_ai_request_model": "tiny", "pool": "cloud", "measurement_type": "batched_online"}
    assert counts(found, "request_duration", gen_ai_operation_name="chat", **tiny) == 7
    assert counts(found, "request_duration", gen_ai_operation_name="text_completion", **tiny) == 2
    assert counts(found, "request_duration", error_type="client_error") == 1
    assert counts(found, "request_duration", error_type="cost_exceeds_slots", **tiny) == 1
    assert counts(found, "time_to_first_token", gen_ai_provider_name="vllm", **tiny) == 3
    models = {s.labels.get("gen_ai_request_model") for f in found.values() for s in f.samples}
    assert models == {None, "tiny"}


async def test_random_requests_make_no_series(engine: ScriptedEngine, sidecar: Running) -> None:
    client = await sidecar.client()

    async def ask(number: int) -> None:
        text = f"{number:x}"
        fields = [
            ("X-Request-Id", text), ("X-Correlation-Id", text), (f"X-{text}", text),
            ("Authorization", f"Bearer {text}"), *traceparent("01"),
        ]  # fmt: skip
        await client.post(CHAT, fields, model=text, user=text)
        await client.get(f"/{text}", fields)
        await client.get(f"/metrics?{text}", fields)

    async def series() -> set[str]:
        """Leaves out the figures from the reports of an engine: they grow as time goes by."""
        return {name for name in await sidecar.metrics() if not name.startswith("orch_engine_")}

    await ask(0)
    before = await series()
    for number in range(1, 40):
        await ask(number)
    assert await series() == before
    after = await sidecar.metrics()
    assert total(after, "orch_requests_total", outcome="ok", route=CHAT, status=200) == 40


async def test_trace_that_the_sidecar_began_is_an_exemplar(
    engine: ScriptedEngine, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        running = await start()
        client = await running.client()
        await client.post(stream=True)
        ids = exemplars(await families(running))
        await client.post(CHAT, traceparent("00"))  # its client samples it not
        assert exemplars(await families(running)) == ids
        for each in running.clients:
            await each.close()
        await running.stop()
    assert {span.trace_id for span in collector.spans} == ids
    assert len(ids) == 1

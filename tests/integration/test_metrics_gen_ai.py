"""What Prometheus scrapes by OpenTelemetry's names, with exemplars, in both of its formats."""

from __future__ import annotations

import pytest
from prometheus_client import Metric

from tests.integration.client import CHAT
from tests.integration.otlp import http_collector
from tests.integration.running import Running, Start
from tests.integration.scripted_engine import ScriptedEngine
from tests.orch_sidecar.openmetrics import openmetrics

OPENMETRICS = [
    ("Accept", "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3")
]
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

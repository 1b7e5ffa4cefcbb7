"""Traces where there is a choice of pools: each span shows how its own pool served it."""

from __future__ import annotations

import pytest

from tests.integration.client import CHAT
from tests.integration.otlp import ERROR, TRACE_ID, TRACEPARENT, Collect, Collector, Span
from tests.integration.running import Running, Start, all_ready, pools
from tests.integration.scripted_engine import Engine, ScriptedEngine
from tests.integration.scripts import closes

KNOWN = ("measurement_type", "orch.profile", "orch.batching", "orch.pool", "orch.class")


def labels(span: Span) -> dict[str, object]:
    return {name: span.attributes[name] for name in KNOWN if name in span.attributes}


@pytest.fixture
async def mixed(start: Start, engine: ScriptedEngine, another: Engine) -> Running:
    """Pools `cloud` and `home`."""
    home = await another(slots=1, profile="home")
    return await all_ready(await start(**pools(cloud=engine, home=home)))


async def test_what_the_pools_agree_on_is_known_of_every_span(
    collector: Collector, collect: Collect, start: Start, engine: ScriptedEngine, b: ScriptedEngine
) -> None:
    running = await all_ready(await start(**pools(a=engine, b=b)))
    client = await running.client()
    refused = await client.post(CHAT, n=0)
    assert refused.header("x-measurement-type") == "batched_online"
    found = await collect(running)
    [span] = found.spans
    assert labels(span) == {
        "measurement_type": "batched_online", "orch.profile": "cloud", "orch.batching": True,
    }  # fmt: skip
    assert span.resource["measurement_type"] == "batched_online"


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

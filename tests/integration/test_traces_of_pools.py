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


async def test_spans_of_a_single_pool_name_it(collect: Collect, sidecar_later: Start) -> None:
    running = await sidecar_later()
    fields = [("traceparent", TRACEPARENT), ("X-Orch-Class", "bulk")]
    await (await running.client()).post(CHAT, fields)
    found = await collect(running)
    expected = {
        "measurement_type": "batched_online", "orch.profile": "cloud", "orch.batching": True,
        "orch.pool": "cloud", "orch.class": "bulk",
    }  # fmt: skip
    assert {span.name for span in found.spans} == {CHAT, "admission.wait", "engine.request"}
    for span in found.spans:
        assert labels(span) == expected
        assert ("orch.placement" in span.attributes) is (span.name == CHAT)
    assert found.one(CHAT).attributes["orch.placement"] == "only"


@pytest.fixture
def sidecar_later(start: Start) -> Start:
    """To be named after the collector: a sidecar that exports to it."""
    return start


async def test_each_span_has_the_labels_of_its_own_pool(
    collector: Collector, collect: Collect, mixed: Running
) -> None:
    client = await mixed.client()
    traces = {"cloud": "1" * 32, "home": "2" * 32}
    for pool, trace in traces.items():
        fields = [("traceparent", f"00-{trace}-{'a' * 16}-01"), ("X-Orch-Pool", pool)]
        assert (await client.post(CHAT, fields)).status == 200
    bad = [("traceparent", f"00-{'3' * 32}-{'a' * 16}-01")]
    assert (await client.post(CHAT, bad, n=0)).status == 400
    found = await collect(mixed)
    for pool, trace in traces.items():
        spans = found.of_trace(trace)
        assert len(spans) == 3
        for span in spans.values():
            assert labels(span)["orch.pool"] == pool
            expected = "single_stream" if pool == "home" else "batched_online"
            assert span.attributes["measurement_type"] == expected
            assert "measurement_type" not in span.resource  # the pools do not agree
        assert spans[CHAT].attributes["orch.placement"] == "pinned"
    [refused] = found.of_trace("3" * 32).values()
    assert labels(refused) == {"measurement_type": "none"}  # it never had a pool


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

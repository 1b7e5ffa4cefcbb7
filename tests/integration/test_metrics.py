"""What Prometheus scrapes: names, closed label sets, and values that follow what happened.

What endpoint pickers read of a sidecar: its queue; the engine's load, KV cache and adapters.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.documents import REFERENCE, ROOT, quoted, rows, section
from tests.integration.client import CHAT, MESSAGES
from tests.integration.held import Held, started
from tests.integration.otlp import http_collector
from tests.integration.running import Running, Start, eventually, pools, total
from tests.integration.scripted_engine import Engine, ScriptedEngine
from tests.integration.scripts import breaks_off_within_an_event, closes
from tests.integration.wire import Answer
from tests.orch_sidecar.openmetrics import openmetrics
from tests.patience import HANG_S

TYPES = {"cloud": "batched_online", "none": "none"}  # by pool


def requests(metrics: dict[str, float]) -> dict[tuple[str, ...], float]:
    """(pool, route, outcome, status) to count."""
    found = {}
    for name, value in metrics.items():
        if name.startswith("orch_requests_total{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', name))
            assert labels["measurement_type"] == TYPES[labels["pool"]]
            found[tuple(labels[each] for each in ("pool", "route", "outcome", "status"))] = value
    return found


async def test_requests_are_counted_by_pool_route_outcome_and_status(
    engine: ScriptedEngine, start: Start
) -> None:
    running = await start(queue_capacity=0)
    held = Held()
    client = await running.client()
    for _ in range(3):
        await client.post(stream=True)
    await client.post(MESSAGES)
    await client.get("/v1/models")
    await client.post(CHAT, n=0)
    await client.post(CHAT, n=5)
    await client.get(CHAT)
    await client.get("/nowhere")

    async def refuse(answer: Answer) -> None:
        answer.json({"error": {}}, 422)

    engine.scripts += [refuse, closes, breaks_off_within_an_event, held]
    await client.post()
    await client.post()
    client.start()
    await client.aborted()
    await running.idle()  # the next one needs all slots, and there is no queue
    gone = await started(running, n=4)
    await eventually(lambda: held.waiting)
    client = await running.client()
    await client.post()
    await gone.close()
    await running.idle()
    for path in ("/livez", "/readyz", "/metrics", "/v1/capabilities"):
        await client.get(path)
    assert requests(await running.metrics()) == {
        ("cloud", CHAT, "ok", "200"): 3,
        ("cloud", MESSAGES, "ok", "200"): 1,
        ("cloud", "/v1/models", "ok", "200"): 1,
        ("none", CHAT, "invalid_request", "400"): 1,
        ("cloud", CHAT, "cost_exceeds_slots", "400"): 1,
        ("none", CHAT, "method_not_allowed", "405"): 1,
        ("none", "(none)", "not_found", "404"): 1,
        ("cloud", CHAT, "client_error", "422"): 1,
        ("cloud", CHAT, "engine_failed", "502"): 1,
        ("cloud", CHAT, "engine_failed", "200"): 1,
        ("cloud", CHAT, "queue_full", "429"): 1,
        ("cloud", CHAT, "cancelled", "0"): 1,
    }


async def test_gauges_are_those_of_the_moment(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    busy = await started(sidecar, n=3)
    waiting = await started(sidecar, n=2)
    await eventually(lambda: sidecar.queued == 1)
    now = await sidecar.metrics()
    pool, interactive, bulk = (
        f'{{{of_class}pool="cloud"}}' for of_class in ("", 'class="interactive",', 'class="bulk",')
    )
    assert now[f"orch_slots_total{pool}"] == 4
    assert now[f"orch_slots_leased{pool}"] == 3
    assert now[f"orch_slots_leased_by_class{interactive}"] == 3
    assert now[f"orch_slots_leased_by_class{bulk}"] == 0
    assert now[f"orch_slots_foreign{pool}"] == 0
    assert now[f"orch_leases{pool}"] == 1
    assert 0 <= now[f"orch_engine_state_age_seconds{pool}"] < 30
    what = 'measurement_type="batched_online",pool="cloud",profile="cloud"'
    assert now[f"orch_pool_info{{{what}}}"] == 1
    queued = 'orch_queue_depth{{class="{}",measurement_type="batched_online",pool="cloud"}}'
    assert now[queued.format("interactive")] == 1
    assert now[queued.format("bulk")] == 0
    assert now['orch_queue_blocked_by{pool="cloud",reason="slot"}'] == 1
    assert now[f"orch_batch_limit{interactive}"] == 4
    assert now[f"orch_oversubscription_violations_total{pool}"] == 0
    states = {n: v for n, v in now.items() if n.startswith("orch_engine_state{")}
    assert states['orch_engine_state{pool="cloud",state="ready"}'] == 1
    assert sum(states.values()) == 1
    held.release()
    await busy.response()
    await eventually(lambda: held.waiting)
    held.release()
    await waiting.response()
    later = await sidecar.metrics()
    assert later[f"orch_slots_leased{pool}"] == total(later, "orch_queue_depth") == 0
    assert (
        total(later, "orch_admissions_total", **{"class": "interactive"}, outcome="admitted") == 2
    )


async def test_decode_steps_are_those_that_the_engine_counted(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    steps = {"1": [10, 0.1], "4": [5, 0.1], "5000": [1, 0.5]}
    prefill = {"tokens": 700, "seconds": 1.5}
    engine.report(steps_by_batch=steps, prefill=prefill, generated_tokens_total=5040)
    pool = 'pool="cloud"'
    name = f"orch_engine_prompt_tokens_total{{{pool}}}"
    metrics: dict[str, float] = {}
    async with asyncio.timeout(HANG_S):
        while metrics.get(name) != 700:
            metrics = await sidecar.metrics()
    assert metrics[f"orch_decode_batch_size_count{{{pool}}}"] == 16
    assert metrics[f"orch_decode_batch_size_sum{{{pool}}}"] == 10 + 20 + 5000
    buckets = {bound: metrics[f'orch_decode_batch_size_bucket{{le="{bound}",{pool}}}']
               for bound in ("1.0", "2.0", "4.0", "1024.0", "+Inf")}  # fmt: skip
    assert buckets == {"1.0": 10, "2.0": 10, "4.0": 15, "1024.0": 15, "+Inf": 16}
    assert abs(metrics[f"orch_decode_seconds_total{{{pool}}}"] - 0.7) < 1e-9
    assert metrics[f"orch_batching_batches_total{{{pool}}}"] == 16
    assert metrics[f"orch_engine_generated_tokens_total{{{pool}}}"] == 5040


def first_cells(page: str, heading: str, after: str = "") -> list[str]:
    """What the first cells of a section's tables name, of those after these words."""
    text = section(ROOT / "docs" / page, heading)
    text = text[text.index(after) :]
    return [name for first, *_ in rows(text) for name in quoted(first)]


async def test_every_metric_is_documented_with_its_kind_and_no_other(
    engine: ScriptedEngine, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")  # for those of spans
    running = await start(
        request_log=str(tmp_path / "requests.jsonl"),
        api_keys_file=tmp_path / "keys.yaml",
        api_keys_required=False,
        batches=str(tmp_path / "batches"),
    )
    client = await running.client()
    response = await client.get("/metrics")
    assert (response.header("content-type") or "").startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(response.body.decode()))
    assert all(family.documentation for family in families)
    kinds = {
        f"{family.name}_total" if family.type == "counter" else family.name: family.type
        for family in families
    }
    assert kinds["process_resident_memory_bytes"] == "gauge"
    documented = [
        (name, kind)
        for first, kind, *_ in rows(section(ROOT / "docs/reference/metrics.md", "Metrics"))
        for name in quoted(first)
        if not name.startswith("vllm:")  # Endpoint pickers
    ]
    assert len(dict(documented)) == len(documented)
    # The format has no kind for what does not change.
    assert {name: kind.replace("info", "gauge") for name, kind in documented} == {
        name: kind for name, kind in kinds.items() if not name.startswith(("process_", "vllm:"))
    }


async def test_every_hold_and_every_state_is_documented_and_no_other(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    metrics = await sidecar.metrics()
    holds = {
        match[1]
        for name in metrics
        if (match := re.fullmatch(r'orch_queue_blocked_by\{.*reason="(\w+)".*\}', name))
    }
    states = {
        match[1]
        for name in metrics
        if (match := re.fullmatch(r'orch_engine_state\{.*state="(\w+)".*\}', name))
    }
    assert set(first_cells("explanation/admission.md", "Constraints")) == holds
    assert set(first_cells("reference/operating.md", "Operating", "Engine states.")) == states


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


PAGE = "/metrics/model-server"
LORA = {"adapters": ["sql", "chat"], "running": ["sql"], "waiting": ["sql"]}


async def read(running: Running, path: str = PAGE) -> dict[str, Metric]:
    """The families of vLLM's names, by name, in the format of a client that asks for none."""
    response = await (await running.client()).get(path)
    assert response.status == 200
    assert (response.header("content-type") or "").startswith("text/plain")
    families = {each.name: each for each in text_string_to_metric_families(response.body.decode())}
    return {name: family for name, family in families.items() if name.startswith("vllm:")}


async def values(running: Running) -> dict[str, float]:
    found = await read(running)
    return {name: family.samples[0].value for name, family in found.items()}


async def test_waiting_is_what_the_sidecar_queues_and_running_what_the_engine_has(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    idle = await values(sidecar)
    assert (idle["vllm:num_requests_waiting"], idle["vllm:num_requests_running"]) == (0, 0)
    clients = [await started(sidecar, seed=seed, n=2) for seed in range(4)]
    await eventually(lambda: len(held.waiting) == 2 and sidecar.queued == 2)
    engine.report(kv_cache_usage=0.25)
    await eventually(lambda: (sidecar.pool.watcher.document or {})["kv_cache_usage"] == 0.25)
    busy = await values(sidecar)
    assert busy["vllm:num_requests_waiting"] == 2
    assert busy["vllm:num_requests_running"] == 4
    assert busy["vllm:kv_cache_usage_perc"] == 0.25
    for _ in clients:
        await eventually(lambda: held.waiting)
        held.release()
    for client in clients:
        await client.response()
    assert (await values(sidecar))["vllm:num_requests_waiting"] == 0


async def test_each_family_has_one_gauge_and_the_page_of_prometheus_has_it_too(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    """A picker reads one sample of each, whatever its labels."""
    found = await read(sidecar)
    assert {family.type for family in found.values()} == {"gauge"}
    assert all(len(family.samples) == 1 for family in found.values())
    assert set(await read(sidecar, "/metrics")) == set(found)
    config = found["vllm:cache_config_info"].samples[0].labels
    assert config == {"block_size": "16", "num_gpu_blocks": "4096"}


async def test_layers_with_blocks_of_several_sizes_have_no_one_size(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    groups = [{"block_tokens": 16}, {"block_tokens": 32}]
    engine.report(kv_groups=groups)
    await eventually(lambda: (sidecar.pool.watcher.document or {})["kv_groups"] == groups)
    assert "vllm:cache_config_info" not in await read(sidecar)


async def lora_of(running: Running) -> dict[str, str]:
    labels: dict[str, str] = (await read(running))["vllm:lora_requests_info"].samples[0].labels
    return labels


async def test_adapters_are_those_of_requests_in_the_engine_and_in_the_queue(
    engine: ScriptedEngine, sidecar: Running, held: Held
) -> None:
    """Of a base model that waits a picker must not think that it is an adapter."""
    assert await lora_of(sidecar) == {
        "max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": "",
    }  # fmt: skip
    engine.report(lora=LORA, features={"max_loras": 2})
    await eventually(lambda: (sidecar.pool.watcher.document or {}).get("lora") == LORA)
    clients = [await started(sidecar, seed=0, n=4)]
    await eventually(lambda: held.waiting)
    for seed, model in enumerate(("chat", "tiny", "chat"), 1):
        clients.append(await started(sidecar, seed=seed, model=model, n=4))
        await eventually(lambda seed=seed: sidecar.queued == seed)  # type: ignore[misc]
    assert await lora_of(sidecar) == {
        "max_lora": "2", "running_lora_adapters": "sql", "waiting_lora_adapters": "chat,sql",
    }  # fmt: skip
    for _ in clients:
        await eventually(lambda: held.waiting)
        held.release()
    for client in clients:
        await client.response()
    assert (await lora_of(sidecar))["waiting_lora_adapters"] == "sql"
    assert sidecar.pool.gate.waiting == {}


async def test_engine_that_has_not_reported_has_a_queue_and_nothing_else(
    engine: ScriptedEngine, start: Start
) -> None:
    await engine.stop()
    sidecar = await start(wait=False)
    assert set(await read(sidecar)) == {"vllm:num_requests_waiting", "vllm:num_requests_running"}


async def test_sidecar_of_several_pools_has_none(
    engine: ScriptedEngine, start: Start, another: Engine
) -> None:
    sidecar = await start(**pools(a=engine, b=await another()))
    assert await read(sidecar) == await read(sidecar, "/metrics") == {}


async def test_every_metric_is_documented_and_no_other(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    documented = {
        quoted(name)[0]: quoted(labels)
        for name, labels, _ in rows(section(REFERENCE / "metrics.md", "Endpoint pickers"))
    }
    found = await read(sidecar)
    assert documented == {name: list(each.samples[0].labels) for name, each in found.items()}

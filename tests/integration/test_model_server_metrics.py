"""What endpoint pickers read of a sidecar: its queue; the engine's load, KV cache and adapters."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.documents import REFERENCE, quoted, rows, section
from tests.integration.held import Held, started
from tests.integration.running import Running, Start, eventually, pools
from tests.integration.scripted_engine import Engine, ScriptedEngine

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

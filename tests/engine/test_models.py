"""The names under which a real engine serves, through a sidecar with several pools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from orch_sidecar.tools.bench.load.capabilities import fetch_json, read_capabilities
from orch_sidecar.tools.bench.load.endpoint import Endpoint
from orch_sidecar.tools.local.stack import Stack
from tests.engine.adapter import write_adapter
from tests.engine.clients import body, engine_state, post, session, until
from tests.engine.sidecars import all_ready, sidecar, states
from tests.patience import HANG_S

# The engine of `sliding` is a start of its own. How adapters come, go and wait is in
# tests/integration/test_adapters.py and test_pools.py.
pytestmark = pytest.mark.long


@pytest.fixture
def url(sliding: Stack, logs: Path, sidecar_key: str) -> Iterator[str]:
    """The URL of a sidecar whose two pools are the same engine."""
    pools = [{"name": name, "url": sliding.engine_url, "profile": "cloud"} for name in ("a", "b")]
    with sidecar(logs / "models.log", *pools, ORCH_SIDECAR_KEY=sidecar_key) as url:
        yield url


@pytest.fixture
def alone(sliding: Stack, logs: Path, sidecar_key: str) -> Iterator[str]:
    """The URL of a sidecar whose only pool is that engine, as endpoint pickers read it."""
    pool = {"name": "a", "url": sliding.engine_url, "profile": "cloud"}
    with sidecar(logs / "alone.log", pool, ORCH_SIDECAR_KEY=sidecar_key) as url:
        yield url


def lora_labels(page: str) -> dict[str, str]:
    """The labels of `vllm:lora_requests_info`; vLLM has a sample for each that there were."""
    [*_, family] = [
        each
        for each in text_string_to_metric_families(page)
        if each.name == "vllm:lora_requests_info"
    ]
    latest = max(family.samples, key=lambda sample: sample.value)
    return dict(latest.labels)


async def adapters_are_seen(http: ClientSession, sliding: Stack, url: str) -> None:
    """A sidecar names the adapter of a request that runs, by the labels that vLLM itself has."""
    await all_ready(http, url)

    async def page(base: str, path: str) -> dict[str, str]:
        async with http.get(base + path) as response:
            return lora_labels(await response.text())

    async def running() -> bool:
        return (await page(url, "/metrics/model-server"))["running_lora_adapters"] == "sql"

    stream = asyncio.create_task(
        post(http, url, "chat", body("chat", 400, stream=True, model="sql"))
    )
    await until(running)
    seen = await page(url, "/metrics/model-server")
    assert seen == {"max_lora": "1", "running_lora_adapters": "sql", "waiting_lora_adapters": ""}
    assert set(seen) <= set(await page(sliding.engine_url, "/metrics"))
    assert (await stream).status == 200


async def test_every_name_is_served_adapters_from_their_load_to_their_unload(
    sliding: Stack, url: str, alone: str, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "sql", Path(sliding.plan.model))

    async def names() -> tuple[str, ...]:
        """As `orch bench` reads them, and refuses to measure any other."""
        found = await read_capabilities(Endpoint.of(url, pool="b"))
        assert found is not None
        return found.snapshot.models

    async with session() as http:

        async def status(model: str) -> int:
            asked = body("chat", 4, stream=False, model=model)
            return (await post(http, url, "chat", asked)).status

        async def call(path: str, **asked: Any) -> None:
            async with http.post(sliding.engine_url + path, json=asked) as response:
                assert response.status == 200, await response.text()

        await all_ready(http, url)
        assert await names() == ("tiny", "alias")
        assert (await status("alias"), await status("sql")) == (200, 404)
        listed = await fetch_json(Endpoint.of(url), "/v1/models")
        assert listed is not None
        assert [each["id"] for each in listed["data"]] == ["tiny", "alias"]
        await call("/v1/load_lora_adapter", lora_name="sql", lora_path=str(adapter))

        async def loaded() -> bool:
            return await names() == ("tiny", "alias", "sql")

        await until(loaded)
        assert await status("sql") == 200
        await adapters_are_seen(http, sliding, alone)
        await call("/v1/unload_lora_adapter", lora_name="sql")

        async def unloaded() -> bool:
            return await names() == ("tiny", "alias")

        await until(unloaded)
        assert await status("sql") == 404


async def test_request_of_another_adapter_waits_in_the_sidecar_and_holds_no_slot(
    sliding: Stack, alone: str, tmp_path: Path
) -> None:
    """The engine runs one adapter at once, vLLM's default. In the engine the second one would wait
    for the end of the first, in a slot."""
    names = ("first", "second")
    bulk = {"X-Orch-Class": "bulk"}  # no SLO would be missed on a slow machine
    async with session() as http:
        await all_ready(http, alone)
        for name in names:
            adapter = write_adapter(tmp_path / name, Path(sliding.plan.model))
            asked = {"lora_name": name, "lora_path": str(adapter)}
            async with http.post(f"{sliding.engine_url}/v1/load_lora_adapter", json=asked) as done:
                assert done.status == 200, await done.text()

        async def known() -> bool:
            return set(names) <= set((await states(http, alone))["a"]["models"])

        await until(known)
        begun = asyncio.Event()
        long = body("chat", 300, stream=True, model="first")
        first = asyncio.create_task(post(http, alone, "chat", long, bulk, begun.set))
        await asyncio.wait_for(begun.wait(), HANG_S)
        second = asyncio.create_task(
            post(http, alone, "chat", body("chat", 4, stream=True, model="second"), bulk)
        )

        async def waits() -> bool:
            return bool((await states(http, alone))["a"]["blocked_by"] == "adapter")

        await until(waits)
        base = await post(http, alone, "chat", body("chat", 4, stream=True), bulk)
        assert base.status == 200
        assert not first.done(), "it has passed"
        engine = await engine_state(http, sliding.engine_url)
        assert (engine["leased"], engine["waiting"]) == (1, 0)
        assert not second.done()
        seen = [await first, await second]
        assert [each.status for each in seen] == [200, 200]
        assert seen[1].first_byte_at >= seen[0].last_byte_at
        for name in names:
            asked = {"lora_name": name}
            async with http.post(f"{sliding.engine_url}/v1/unload_lora_adapter", json=asked) as end:
                assert end.status == 200, await end.text()

"""Batches in the live document, and so on the page and in `orch top`; and in metrics."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import openai
import pytest

from tests.integration.batches.batching import Batches, some
from tests.integration.batches.conftest import MakeClient
from tests.integration.held import Held
from tests.integration.keyed import KeyRing
from tests.integration.live import LiveReader
from tests.integration.running import Running, Start


async def test_progress_is_in_the_live_document_and_in_metrics(
    batches: Batches, sidecar: Running, held: Held
) -> None:
    batch = await batches.until(await batches.create(some(20)), "in_progress")
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{sidecar.port}/v1/live") as response,
    ):
        reader = LiveReader(response)
        await reader.until(lambda document: len(held.waiting) == 4 and document["batches"])
        held.release()
        document = await reader.until(lambda document: document["batches"][0]["completed"])
        [row] = document["batches"]
        assert (row["batch"], row["key"], row["total"]) == (batch.id, None, 20)
        metrics = await sidecar.metrics()
        assert metrics['orch_batches{status="in_progress"}'] == 1
        assert metrics["orch_batch_rows_left"] == 19
        assert metrics['orch_batch_rows_total{outcome="completed"}'] == 1
        await batches.client.batches.cancel(batch.id)
        await reader.until(lambda document: not document["batches"])


async def test_requests_of_files_and_batches_are_in_metrics_and_log(
    start: Start, client: MakeClient, tmp_path: Path
) -> None:
    keys, log = KeyRing(tmp_path), tmp_path / "log.jsonl"
    alice = keys.add("alice")
    running = await start(
        batches=str(tmp_path / "batches"), api_keys_file=keys.path, request_log=str(log)
    )
    api = client(running, alice).client
    file = await api.files.with_raw_response.create(
        file=("in.jsonl", some(1)), purpose="batch", extra_headers={"X-Request-Id": "mine"}
    )
    name = file.parse().id
    content = await api.files.content(name)
    with pytest.raises(openai.NotFoundError):
        await api.batches.retrieve("batch_none")
    with pytest.raises(openai.AuthenticationError):
        await client(running, "unknown").upload(b"{}")
    wrong = await (await running.client()).request(
        "DELETE", "/v1/batches", None, [keys.bearer("alice")]
    )
    assert wrong.status == 405
    metrics = await running.metrics()

    def counted(route: str, outcome: str, status: int) -> float:
        labels = f'outcome="{outcome}",pool="none",route="{route}",status="{status}"'
        return sum(value for name, value in metrics.items() if labels in name)

    assert counted("/v1/files", "ok", 200) == 1
    assert counted("/v1/files/{name}/content", "ok", 200) == 1
    assert counted("/v1/batches/{name}", "not_found", 404) == 1
    assert counted("/v1/files", "unauthorized", 401) == 1
    assert counted("/v1/batches", "method_not_allowed", 405) == 1
    await running.stop()
    logged = {each["id"]: each for each in map(json.loads, log.read_text().splitlines())}
    line = logged[file.headers["x-orch-request-id"]]
    assert (line["route"], line["method"], line["key"]) == ("/v1/files", "POST", "alice")
    assert (line["request_id"], file.headers["x-request-id"]) == ("mine", "mine")
    assert logged[content.response.headers["x-orch-request-id"]]["outcome"] == "ok"


async def test_client_sees_the_batches_of_its_key_alone(
    start: Start, client: MakeClient, held: Held, tmp_path: Path
) -> None:
    keys = KeyRing(tmp_path)
    alice, bob = keys.add("alice"), keys.add("bob")
    running = await start(batches=str(tmp_path / "batches"), api_keys_file=keys.path)
    of_alice = await client(running, alice).create(some(8))
    await client(running, bob).create(some(8))
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {alice}"}) as session,
        session.get(f"http://127.0.0.1:{running.port}/v1/live") as response,
    ):
        reader = LiveReader(response)
        await reader.until(lambda document: len(held.waiting) == 4 and document["batches"])
        assert [row["batch"] for row in reader.document["batches"]] == [of_alice.id]

"""Batches in the live document, and so on the page and in `orch top`; and in metrics."""

from __future__ import annotations

from pathlib import Path

import aiohttp

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

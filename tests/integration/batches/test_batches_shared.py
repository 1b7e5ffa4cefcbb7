"""Several sidecars share batches by PostgreSQL, and files by a directory or by S3."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from orch_sidecar.batches.runner import MIN_WAITING_ROWS
from tests import postgres
from tests.integration.answers import answer as usual
from tests.integration.batches.batching import counts, ids, some
from tests.integration.batches.conftest import MakeClient
from tests.integration.batches.test_batches_killed import each_once, slow
from tests.integration.client import CHAT
from tests.integration.held import Held
from tests.integration.running import Start, eventually
from tests.integration.scripted_engine import Engine, ScriptedEngine
from tests.integration.test_process import ready, run


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres.server() as running:
        yield running.url


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a place in S3, to which the environment points."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in (
        ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
        ("AWS_ACCESS_KEY_ID", "any"),
        ("AWS_SECRET_ACCESS_KEY", "any"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem().mkdir("batches")
    yield "s3://batches/here"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


async def test_what_a_killed_sidecar_had_another_one_runs(
    start: Start, client: MakeClient, engine: ScriptedEngine, held: Held, another: Engine,
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("orch_sidecar.batches.runner.LOOK_EVERY_S", 1.0)  # as the other one has it
    other = await another()
    other.answer = slow
    running = await start(batches=str(tmp_path), batches_database=database)
    batches = client(running)
    environment = {
        "ORCH_ENGINE_URL": other.url,
        "ORCH_BATCHES": str(tmp_path),
        "ORCH_BATCHES_DATABASE": database,
    }
    async with run("--profile=cloud", **environment) as process:
        connection = await process.client()
        await ready(connection)
        batch = await batches.create(some(100))
        await eventually(lambda: len(other.generating) > 20 and len(held.waiting) == 4)
        process.process.kill()
        await connection.close()
        engine.answer = usual
        held.release_all()
        await each_once(batches, await batches.until(batch), 100)
    ran = Counter(each.json()["seed"] for each in (*engine.generating, *other.generating))
    assert set(ran) == set(range(100))
    twice = [seed for seed, times in ran.items() if times > 1]
    assert len(twice) <= MIN_WAITING_ROWS + other.slots, "only what it had taken"


@pytest.mark.long
async def test_files_are_in_s3(
    start: Start, client: MakeClient, bucket: str, database: str
) -> None:
    batches = client(await start(batches=bucket, batches_database=database))
    content = some(300)
    batch = await batches.ended(content)
    await each_once(batches, batch, 300)
    assert (await batches.client.files.content(batch.input_file_id)).content == content
    large = b"x" * 12_000_000  # uploaded in parts
    name = await batches.upload(large)
    assert (await batches.client.files.content(name)).content == large
    await batches.client.files.delete(name)
    with pytest.raises(openai.NotFoundError):
        await batches.client.files.content(name)


async def test_database_that_is_away_is_waited_for(
    start: Start, client: MakeClient, engine: ScriptedEngine, tmp_path: Path
) -> None:
    engine.answer = slow
    with postgres.server() as server:
        running = await start(batches=str(tmp_path), batches_database=server.url)
        batches = client(running)
        batch = await batches.create(some(100))
        await eventually(lambda: len(engine.generating) > 20)
        server.stop()
        with pytest.raises(openai.InternalServerError) as refused:
            await batches.client.batches.retrieve(batch.id)
        assert refused.value.code == "storage_failed"
        await asyncio.to_thread(server.start)
        batch = await batches.until(batch)
        assert (batch.status, counts(batch)) == ("completed", (100, 100, 0))
        assert [each["custom_id"] for each in await batches.output(batch)] == ids(100)
        await running.stop()


async def test_characters_that_postgresql_does_not_store_are_no_fault_of_it(
    start: Start, client: MakeClient, database: str, tmp_path: Path
) -> None:
    api = client(await start(batches=str(tmp_path), batches_database=database)).client
    assert not [each async for each in api.files.list(purpose="a\0", after="\0")]
    file = await api.files.create(file=("a", some(1)), purpose="batch")
    wanted: Any = {"endpoint": CHAT, "completion_window": "24h", "metadata": {"a\0": "\0"}}
    with pytest.raises(openai.NotFoundError):
        await api.batches.create(input_file_id="file-\0", **wanted)
    batch = await api.batches.create(input_file_id=file.id, **wanted)
    assert batch.metadata == wanted["metadata"]

"""Batches of sidecars that are killed, and of several that share them by PostgreSQL and S3."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import event

from orch_sidecar.batches import ledger
from orch_sidecar.batches.runner import MIN_WAITING_ROWS
from orch_sidecar.engine_state.states import PoolState
from tests import postgres
from tests.integration.answers import answer as usual
from tests.integration.batches.batching import Batches, counts, ids, lines, row, some
from tests.integration.batches.conftest import MakeClient
from tests.integration.client import CHAT
from tests.integration.held import Held
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import Engine, ScriptedEngine
from tests.integration.scripts import closes
from tests.integration.test_process import ready, run
from tests.integration.wire import Answer
from tests.patience import HANG_S


async def slow(answer: Answer) -> None:
    await asyncio.sleep(0.02)
    await usual(answer)


async def each_once(batches: Batches, batch: openai.types.Batch, count: int) -> None:
    """Each row is in the output file, and nothing is in another."""
    assert (batch.status, counts(batch)) == ("completed", (count, count, 0))
    assert [each["custom_id"] for each in await batches.output(batch)] == ids(count)
    assert batch.error_file_id is None


async def _kill_again_and_again(
    engine: ScriptedEngine, directory: Path, rows: int, kills: int
) -> None:
    """Kills the sidecar so many times, at moments by chance, while a batch is checked, run and
    written; and the batch ends in one that is left alone."""
    chance = random.Random(kills)
    engine.answer = slow
    environment = {"ORCH_ENGINE_URL": engine.url, "ORCH_BATCHES": str(directory)}
    batch_id = ""
    for number in range(kills + 1):
        async with run("--profile=cloud", **environment) as process:
            client = await process.client()
            batches = Batches(process.port)
            if not batch_id:
                batch_id = (await batches.create(some(rows))).id
            if number < kills:
                wanted = len(engine.generating) + chance.choice((0, 1, 4, 2 * rows // kills))
                await _until_it_has(engine, wanted, batches, batch_id)
                await asyncio.sleep(chance.uniform(0, 0.1))
                process.process.kill()
            else:
                await ready(client)
                ended = await batches.until(await batches.client.batches.retrieve(batch_id))
                await each_once(batches, ended, rows)
            await client.close()
            await batches.client.close()


async def _until_it_has(
    engine: ScriptedEngine, wanted: int, batches: Batches, batch_id: str
) -> None:
    """Waits until the engine has got so many rows, or the batch is over."""
    async with asyncio.timeout(HANG_S):
        batch = await batches.client.batches.retrieve(batch_id)
        while len(engine.generating) < wanted and batch.status != "completed":
            await asyncio.sleep(0.01)
            batch = await batches.client.batches.retrieve(batch_id)


@pytest.mark.parametrize(
    ("kills", "rows"), [(2, 30), pytest.param(50, 1000, marks=pytest.mark.long)]
)
async def test_each_row_is_in_the_output_once_although_the_sidecar_is_killed(
    engine: ScriptedEngine, tmp_path: Path, kills: int, rows: int
) -> None:
    await _kill_again_and_again(engine, tmp_path, rows, kills)


@pytest.mark.parametrize(
    ("kills", "rows"), [(10, 60), pytest.param(50, 200, marks=pytest.mark.long)]
)
async def test_each_row_is_in_the_output_once_although_the_engine_is_killed(
    batches: Batches, engine: ScriptedEngine, kills: int, rows: int
) -> None:
    chance = random.Random(kills)
    engine.answer = slow
    batch = await batches.create(some(rows))
    for _ in range(kills):
        await _until_it_has(engine, len(engine.generating) + 1, batches, batch.id)
        await asyncio.sleep(chance.uniform(0, 0.02))
        await engine.restart()
    await each_once(batches, await batches.until(batch), rows)


async def test_row_with_which_every_engine_is_lost_is_given_up(
    batches: Batches, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch_sidecar.batches.runner._MAX_PAUSE_S", 0.01)

    async def one_is_lost(answer: Answer) -> None:
        await (closes if answer.request.json()["seed"] == 1 else usual)(answer)

    engine.answer = one_is_lost
    batch = await batches.ended(some(3))
    assert (batch.status, counts(batch)) == ("completed", (3, 2, 1))
    [failure] = await batches.failures(batch)
    assert failure["custom_id"] == "row-1"
    assert failure["response"]["body"]["error"]["code"] == "engine_failed"
    assert Counter(each.json()["seed"] for each in engine.generating)[1] >= 10


@pytest.mark.parametrize("known", [True, False], ids=["refused", "waiting"])
async def test_rows_behind_those_whose_engine_is_away_run_meanwhile(
    known: bool,
    start: Start,
    client: MakeClient,
    engine: ScriptedEngine,
    another: Engine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("orch_sidecar.batches.runner._MAX_PAUSE_S", 0.01)
    monkeypatch.setattr("orch_sidecar.batches.runner._MAX_WAIT_S", 0.1)
    large = await another(models=("large",))
    if not known:
        await large.stop()
    running = await start(**pools(a=engine, b=large), batches=str(tmp_path))
    if known:
        await all_ready(running)
        await large.stop()
        await eventually(lambda: running.sidecar.pools["b"].state is PoolState.DOWN)
    batches = client(running)
    rows = [row(f"large-{number}", model="large", seed=number) for number in range(20)]
    batch = await batches.create(lines([*rows, row("tiny")]))
    while counts(batch)[1] < 1:
        batch = await batches.client.batches.retrieve(batch.id)
        await asyncio.sleep(0.01)
    await large.start()
    batch = await batches.until(batch)
    assert (batch.status, counts(batch)) == ("completed", (21, 21, 0))


async def test_rows_that_a_stopping_sidecar_runs_are_run_by_the_next_one(
    start: Start, client: MakeClient, engine: ScriptedEngine, held: Held, tmp_path: Path
) -> None:
    """At once: it has given them back."""
    first = await start(batches=str(tmp_path))
    batch = await client(first).create(some(20))
    await eventually(lambda: len(held.waiting) == 4)
    await first.stop()
    engine.answer = usual
    batches = client(await start(batches=str(tmp_path)))
    await each_once(batches, await batches.until(batch), 20)
    assert len(engine.generating) == 4 + 20


async def test_rows_that_others_have_given_back_are_not_run_beside_themselves(
    batches: Batches, sidecar: Running, engine: ScriptedEngine, held: Held,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """They took this sidecar for dead, which was paused, and it takes its own rows again."""
    batch = await batches.create(some(20))
    await eventually(lambda: len(held.waiting) == 4 and sidecar.queued == 8)
    found: Any = sidecar.sidecar.batches
    await found._database.run(partial(ledger.leave, worker=found.runner.id))
    for _ in range(4):
        held.release()
        await eventually(lambda: len(held.waiting) == 4)
    engine.answer = usual
    held.release_all()
    await each_once(batches, await batches.until(batch), 20)
    assert "Exception in callback" not in caplog.text


async def test_batch_goes_on_once_a_full_disk_has_room(
    batches: Batches, sidecar: Running, engine: ScriptedEngine, held: Held
) -> None:
    """SQLite's own limit of pages stands for the disk: its error is the same."""
    found: Any = sidecar.sidecar.batches
    database = found._database._engine
    batch = await batches.until(await batches.create(some(200)), "in_progress")
    await eventually(lambda: len(held.waiting) == 4)
    pages = {"most": 1}

    def limit(connection: Any) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages['most']}")

    event.listen(database, "begin", limit)
    large = {"data": "x" * 20_000}

    async def answer_at_length(answer: Answer) -> None:
        answer.json(large)

    engine.answer = answer_at_length
    held.release_all()
    await eventually(lambda: found.runner._unsure)
    assert counts(await batches.client.batches.retrieve(batch.id))[1] < 200
    many = [batches.upload(b"x") for _ in range(200)]
    with pytest.raises(openai.InternalServerError) as refused:
        await asyncio.gather(*many)
    assert refused.value.code == "storage_failed"
    pages["most"] = 1_000_000
    await each_once(batches, await batches.until(batch), 200)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file system that is full")
async def test_output_is_written_once_a_full_disk_has_room(
    batches: Batches, sidecar: Running, engine: ScriptedEngine, held: Held, tmp_path: Path
) -> None:
    files = tmp_path / "batches" / "files"
    mount = ("mount", "-t", "tmpfs", "-o", "size=64k", "none", str(files))
    batch = await batches.until(await batches.create(some(20)), "in_progress")
    await eventually(lambda: len(held.waiting) == 4)
    content = {each.name: each.read_bytes() for each in files.iterdir()}
    mounted = await asyncio.create_subprocess_exec(*mount, stderr=asyncio.subprocess.PIPE)
    _, error = await mounted.communicate()
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {error.decode().strip()}")
    try:
        for name, data in content.items():
            (files / name).write_bytes(data)
        filler = files / "filler"
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(b"x" * 100_000)
        engine.answer = usual
        held.release_all()
        batch = await batches.until(batch, "finalizing")
        await asyncio.sleep(0.5)
        assert (await batches.client.batches.retrieve(batch.id)).status == "finalizing"
        with pytest.raises(openai.InternalServerError):
            await batches.upload(b"x" * 10_000)
        filler.unlink()
        await each_once(batches, await batches.until(batch), 20)
    finally:
        unmounted = await asyncio.create_subprocess_exec("umount", "-l", str(files))
        assert await unmounted.wait() == 0


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

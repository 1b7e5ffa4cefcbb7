"""Batches by OpenAI's client: what becomes of them and of each of their rows."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import update

from orch_sidecar.batches.tables import Batch
from tests.integration.answers import answer as usual
from tests.integration.batches.batching import (
    Batches,
    counts,
    ids,
    lines,
    row,
    some,
)
from tests.integration.batches.conftest import MakeClient
from tests.integration.client import CHAT
from tests.integration.held import Held
from tests.integration.keyed import KeyRing
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer


def let_go(engine: ScriptedEngine, held: Held) -> None:
    """The engine answers what it holds, and from now on at once."""
    engine.answer = usual
    held.release_all()


async def two_end(batches: Batches, batch: openai.types.Batch, held: Held) -> None:
    """Two rows of the batch have their answers."""
    held.release()
    held.release()
    while counts(batch)[1] < 2:
        batch = await batches.client.batches.retrieve(batch.id)
        await asyncio.sleep(0.01)


async def test_batch_is_completed_and_each_row_is_in_its_output(batches: Batches) -> None:
    batch = await batches.create(some(30))
    assert (batch.status, batch.model, counts(batch)) == ("validating", None, (0, 0, 0))
    assert batch.expires_at == batch.created_at + 86_400
    batch = await batches.until(batch)
    assert (batch.status, batch.model, counts(batch)) == ("completed", "tiny", (30, 30, 0))
    moments = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
    assert moments == sorted(moments)
    assert batch.error_file_id is None
    output = await batches.output(batch)
    assert [each["custom_id"] for each in output] == ids(30)
    assert len({each["id"] for each in output}) == 30
    for each in output:
        assert each["error"] is None
        assert each["response"]["status_code"] == 200
        assert each["response"]["body"]["choices"][0]["message"]["content"] == "one two three"


async def test_answers_are_not_compressed(batches: Batches, engine: ScriptedEngine) -> None:
    async def compresses_if_it_may(answer: Answer) -> None:
        if "gzip" not in (answer.request.header("accept-encoding") or ""):
            await usual(answer)
            return
        body = gzip.compress(b"{}")
        answer.head(
            200, [("content-encoding", "gzip"), ("content-length", str(len(body)))], chunked=False
        )
        answer.write(body)

    engine.answer = compresses_if_it_may
    [only] = await batches.output(await batches.ended(lines([row("a", temperature=1)])))
    assert only["response"]["body"]["choices"]


async def test_metadata_and_lists_of_batches(batches: Batches) -> None:
    file = await batches.upload(some(1))
    made = [
        (
            await batches.client.batches.create(
                input_file_id=file,
                endpoint=CHAT,
                completion_window="24h",
                metadata={"number": str(number)},
            )
        ).id
        for number in range(3)
    ]
    listed = [each async for each in batches.client.batches.list(limit=2)]
    assert [each.id for each in listed] == made[::-1]
    assert listed[0].metadata == {"number": "2"}
    page = await batches.client.batches.list(after=made[1])
    assert ([each.id for each in page.data], page.has_more) == (made[:1], False)


async def test_file_of_vllms_run_batch_works_as_it_is(
    batches: Batches, engine: ScriptedEngine
) -> None:
    """There each row names its endpoint, and the last line may be blank."""

    def vector(answer: Answer) -> None:
        answer.json({"data": [{"embedding": [0.5]}]})

    for path in ("/v1/embeddings", "/score"):
        engine.pages[path] = vector
    content = lines(
        [
            row("chat"),
            row("completion", "/v1/completions"),
            row("response", "/v1/responses"),
            row("embedding", "/v1/embeddings"),
            row("score", "/score", queries="a", documents=["b"]),
        ]
    )
    batch = await batches.ended(content + b"\n")
    assert (batch.status, counts(batch)) == ("completed", (5, 5, 0))
    output = {each["custom_id"]: each["response"]["body"] for each in await batches.output(batch)}
    assert output["embedding"]["data"] == output["score"]["data"] == [{"embedding": [0.5]}]
    assert output["completion"]["object"] == "text_completion"
    assert output["response"]["object"] == "response"


async def test_row_that_fails_is_in_the_error_file_and_the_others_are_not_harmed(
    batches: Batches, engine: ScriptedEngine
) -> None:
    async def one_fails(answer: Answer) -> None:
        body = answer.request.json()
        status = 400 if body["seed"] == 1 else 200 if body["model"] == "tiny" else 404
        if status != 200:
            answer.json({"error": {"message": "no", "type": "bad", "code": status}}, status)
        else:
            await usual(answer)

    engine.answer = one_fails
    content = some(3) + lines([row("wrong-model", model="unknown", seed=9), row("bad", n="x")])
    batch = await batches.ended(content)
    assert (batch.status, batch.model, counts(batch)) == ("completed", None, (5, 2, 3))
    assert [each["custom_id"] for each in await batches.output(batch)] == ["row-0", "row-2"]
    failures = {each["custom_id"]: each["response"] for each in await batches.failures(batch)}
    statuses = {name: response["status_code"] for name, response in failures.items()}
    assert statuses == {"row-1": 400, "wrong-model": 404, "bad": 400}
    assert failures["wrong-model"]["body"]["error"]["code"] == 404


@pytest.mark.parametrize(
    ("content", "code", "line"),
    [
        (some(2) + b"{no json\n", "invalid_json_line", 3),
        (lines([row("a"), row("a")]), "duplicate_custom_id", 2),
        (lines([row("a", "/v1/models")]), "invalid_url", 1),
        (lines([row("a", stream=True)]), "invalid_request", 1),
        (b"\n\n", "empty_file", None),
    ],
)
async def test_file_that_cannot_be_run_fails_as_a_whole_and_says_why(
    batches: Batches, engine: ScriptedEngine, content: bytes, code: str, line: int | None
) -> None:
    batch = await batches.ended(content)
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.errors is not None
    assert batch.errors.data is not None
    [problem] = batch.errors.data
    assert (problem.code, problem.line) == (code, line)
    assert not engine.generating


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"endpoint": "/v1/models"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"metadata": {"a" * 65: "b"}}, "metadata"),
        ({"output_expires_after": {"anchor": "ended_at", "seconds": 3600}}, None),
    ],
)
async def test_wrong_value_of_a_batch_is_named(
    batches: Batches, options: dict[str, Any], param: str | None
) -> None:
    wanted = {"endpoint": CHAT, "completion_window": "24h", "input_file_id": "file-1"} | options
    with pytest.raises(openai.BadRequestError) as refused:
        await batches.client.batches.create(**wanted)
    assert refused.value.param == param


async def test_cancelled_batch_ends_the_rows_that_run(batches: Batches, held: Held) -> None:
    batch = await batches.create(some(20))
    await eventually(lambda: len(held.waiting) == 4)
    await two_end(batches, batch, held)
    with pytest.raises(openai.BadRequestError, match="is the input of the batch"):
        await batches.client.files.delete(batch.input_file_id)
    batch = await batches.client.batches.cancel(batch.id)
    assert batch.status == "cancelling"
    batch = await batches.until(batch)
    assert (batch.status, counts(batch)) == ("cancelled", (20, 2, 18))
    assert sorted(await batches.ids(batch)) == sorted(ids(20))
    assert {each["error"]["code"] for each in await batches.failures(batch)} == {"batch_cancelled"}
    with pytest.raises(openai.BadRequestError, match="cannot be cancelled"):
        await batches.client.batches.cancel(batch.id)


async def test_expired_batch_has_the_rows_that_were_answered(
    batches: Batches, sidecar: Running, held: Held
) -> None:
    batch = await batches.create(some(20), window="90s")
    assert batch.expires_at == batch.created_at + 90
    await eventually(lambda: len(held.waiting) == 4)
    await two_end(batches, batch, held)
    now = update(Batch).values(expires_at=batch.created_at)
    found: Any = sidecar.sidecar.batches
    await found._database.run(lambda session: session.execute(now))
    batch = await batches.until(batch)
    assert batch.status == "expired"
    assert batch.expired_at is not None
    assert counts(batch) == (20, 2, 18)
    assert sorted(await batches.ids(batch)) == sorted(ids(20))
    assert {each["error"]["code"] for each in await batches.failures(batch)} == {"batch_expired"}


async def test_rows_run_by_the_rules_of_their_owners_key(
    start: Start, client: MakeClient, engine: ScriptedEngine, held: Held, tmp_path: Path
) -> None:
    """Its limits, its log. The engine gets neither the key nor its digest."""
    keys, log = KeyRing(tmp_path), tmp_path / "log.jsonl"
    alice = keys.add("alice", concurrency=2)
    running = await start(
        batches=str(tmp_path / "batches"), api_keys_file=keys.path, request_log=str(log)
    )
    batches = client(running, alice)
    batch = await batches.create(some(6))
    await eventually(lambda: len(held.waiting) == 2)
    assert all(each.header("authorization") is None for each in engine.generating)
    let_go(engine, held)
    batch = await batches.until(batch)
    assert (batch.status, counts(batch)) == ("completed", (6, 6, 0))
    assert engine.peak == 2
    await running.stop()
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    rows = [each for each in logged if (each["outcome"], each["route"]) == ("ok", CHAT)]
    assert {each["request_id"] for each in rows} == set(ids(6))
    assert {(each["correlation_id"], each["key"], each["class"]) for each in rows} == {
        (batch.id, "alice", "idle")
    }


async def test_rows_of_a_key_that_is_removed_are_refused(
    start: Start, client: MakeClient, engine: ScriptedEngine, held: Held, tmp_path: Path
) -> None:
    keys = KeyRing(tmp_path)
    alice = keys.add("alice")
    keys.add("bob")
    running = await start(batches=str(tmp_path / "batches"), api_keys_file=keys.path)
    batches = client(running, alice)
    batch = await batches.create(some(20))
    await eventually(lambda: len(held.waiting) == 4)
    keys.remove("alice")
    running.sidecar.reloader.due.set()
    await eventually(lambda: len(running.sidecar.frontend._authorizer.keys or ()) == 1)
    let_go(engine, held)
    await eventually(lambda: running.sidecar.batches and not running.sidecar.batches.runner.batches)
    keys.add("alice")
    running.sidecar.reloader.due.set()
    await eventually(lambda: len(running.sidecar.frontend._authorizer.keys or ()) == 2)
    batch = await batches.until(batch)
    assert sorted(await batches.ids(batch)) == sorted(ids(20))
    statuses = {each["response"]["status_code"] for each in await batches.failures(batch)}
    assert statuses == {401}


async def test_some_rows_wait_for_slots_and_no_more(
    batches: Batches, sidecar: Running, engine: ScriptedEngine, held: Held
) -> None:
    """So few are with admission, whatever the size of the batch."""
    batch = await batches.create(some(200))
    await eventually(lambda: len(held.waiting) == 4 and sidecar.queued == 8)
    await asyncio.sleep(0.3)  # some looks
    assert sidecar.queued == 8
    let_go(engine, held)
    assert (await batches.until(batch)).status == "completed"


async def test_small_batches_run_beside_each_other(batches: Batches, held: Held) -> None:
    made = [await batches.create(lines([row("a", seed=each)])) for each in range(4)]
    await eventually(lambda: len(held.waiting) == 4)
    held.release_all()
    for each in made:
        assert (await batches.until(each)).status == "completed"


async def test_quota_of_rows_holds_for_all_batches_of_a_key(
    start: Start, client: MakeClient, engine: ScriptedEngine, held: Held, tmp_path: Path
) -> None:
    running = await start(batches=str(tmp_path / "batches"), batches_quota_rows=10)
    batches = client(running)
    first = await batches.until(await batches.create(some(8)), "in_progress")
    second = await batches.ended(some(3))
    assert second.errors is not None
    assert second.errors.data is not None
    assert [each.code for each in second.errors.data] == ["too_many_rows"]
    let_go(engine, held)
    await batches.until(first)
    assert (await batches.ended(some(10))).status == "completed"


async def test_key_has_so_many_batches_that_have_not_ended(
    batches: Batches, engine: ScriptedEngine, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch_sidecar.batches.catalog.MAX_OPEN_BATCHES", 2)
    first, _ = [await batches.create(some(1)) for _ in range(2)]
    with pytest.raises(openai.APIStatusError) as refused:
        await batches.create(some(1))
    assert refused.value.code == "quota_exceeded"
    let_go(engine, held)
    await batches.until(first)
    await batches.until(await batches.create(some(1)))


async def test_batch_that_ended_long_ago_is_deleted_with_its_files(
    batches: Batches, sidecar: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = await batches.ended(some(1))
    again = await batches.client.batches.create(
        input_file_id=old.input_file_id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
    )
    again = await batches.until(again)
    other = await batches.upload(some(1))
    ended_at = old.completed_at
    assert ended_at is not None
    earlier = update(Batch).where(Batch.id == old.id).values(completed_at=ended_at - 3600)
    found: Any = sidecar.sidecar.batches
    await found._database.run(lambda session: session.execute(earlier))
    monkeypatch.setattr("orch_sidecar.batches.runner.SWEEP_EVERY_S", 0.0)
    folder = tmp_path / "batches" / "files"

    async def leaves(after_s: int, left: list[str], files: set[str | None]) -> None:
        now = ended_at + 30 * 86_400 + after_s
        monkeypatch.setattr("orch_sidecar.batches.jobs.now_s", lambda: now)
        await eventually(lambda: {each.name for each in folder.iterdir()} == files)
        assert [each.id async for each in batches.client.batches.list()] == left

    await leaves(-1800, [again.id], {old.input_file_id, again.output_file_id, other})
    await leaves(3600, [], {other})

"""Files: what OpenAI's client does with them, whose they are, and how much of them there may be."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import openai
import pytest
from fsspec.implementations.local import LocalFileOpener

from tests.integration.batches.batching import Batches, some
from tests.integration.batches.conftest import MakeClient
from tests.integration.client import CHAT
from tests.integration.keyed import KeyRing
from tests.integration.running import Running, Start, eventually


async def test_file_is_uploaded_described_read_and_deleted(batches: Batches) -> None:
    content = some(3)
    file = await batches.client.files.create(
        file=("requests.jsonl", content),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 7200},
    )
    assert (file.bytes, file.filename, file.purpose) == (len(content), "requests.jsonl", "batch")
    assert file.expires_at == file.created_at + 7200
    retrieved = await batches.client.files.retrieve(file.id)
    assert retrieved.model_dump() == file.model_dump()
    assert (await batches.client.files.content(file.id)).content == content
    assert (await batches.client.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await batches.client.files.content(file.id)


async def test_deleted_content_is_on_no_disk(batches: Batches, tmp_path: Path) -> None:
    name = await batches.upload(some(3))
    stored = tmp_path / "batches" / "files" / name
    assert stored.exists()
    await batches.client.files.delete(name)
    assert not list(stored.parent.iterdir())


async def test_files_are_listed_in_pages_the_newest_first(batches: Batches) -> None:
    made = [await batches.upload(some(1)) for _ in range(5)]
    assert [each.id async for each in batches.client.files.list(limit=2)] == made[::-1]
    page = await batches.client.files.list(limit=2, order="asc", after=made[1])
    assert [each.id for each in page.data] == made[2:4]
    assert page.has_more
    assert not [each async for each in batches.client.files.list(purpose="batch_output")]


async def test_wrong_values_are_named(batches: Batches) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await batches.client.files.create(file=("a", b"{}"), purpose="fine-tune")
    assert refused.value.param == "purpose"
    with pytest.raises(openai.BadRequestError, match="the file is empty"):
        await batches.client.files.create(file=("a", b""), purpose="batch")
    # Python makes no number of the long one.
    for name, value in (("limit", "0"), ("limit", "9" * 5000), ("order", "up")):
        with pytest.raises(openai.BadRequestError) as refused:
            await batches.client.files.list(extra_query={name: value})
        assert refused.value.param == name


async def test_form_without_a_file_is_refused(sidecar: Running) -> None:
    client = await sidecar.client()
    field = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    form = field % (b"purpose", b"batch") + field % (b"bytes", b"7") + b"--x--\r\n"
    kind = [("Content-Type", "multipart/form-data; boundary=x")]
    refused = await client.request("POST", "/v1/files", form, kind)
    assert (refused.status, refused.error["param"]) == (400, "file")
    refused = await client.request("POST", "/v1/files", form, [("Content-Type", "text/plain")])
    assert refused.status == 400


async def test_another_key_finds_nothing(start: Start, client: MakeClient, tmp_path: Path) -> None:
    keys = KeyRing(tmp_path)
    alice, bob = keys.add("alice"), keys.add("bob")
    running = await start(batches=str(tmp_path / "batches"), api_keys_file=keys.path)
    owner, other = client(running, alice), client(running, bob)
    batch = await owner.ended(some(2))
    hidden: list[Awaitable[object]] = [
        other.client.batches.retrieve(batch.id),
        other.client.batches.cancel(batch.id),
    ]
    for name in (batch.input_file_id, batch.output_file_id or ""):
        files = other.client.files
        hidden += [files.retrieve(name), files.content(name), files.delete(name)]
    for call in hidden:
        with pytest.raises(openai.NotFoundError):
            await call
    with pytest.raises(openai.NotFoundError):
        await other.client.batches.create(
            input_file_id=batch.input_file_id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
    assert not [each async for each in other.client.files.list()]
    assert not [each async for each in other.client.batches.list()]
    with pytest.raises(openai.AuthenticationError):
        await client(running, "unknown").upload(some(1))


async def test_file_beyond_the_limit_or_the_quota_is_refused_and_not_stored(
    start: Start, client: MakeClient, tmp_path: Path
) -> None:
    running = await start(
        batches=str(tmp_path / "batches"), batches_file_bytes=6000, batches_quota_bytes=10_000
    )
    batches = client(running)
    with pytest.raises(openai.APIStatusError) as refused:
        await batches.upload(b"x" * 6001)
    assert (refused.value.status_code, refused.value.code) == (413, "body_too_large")
    await batches.upload(b"x" * 5000)
    with pytest.raises(openai.APIStatusError) as refused:
        await batches.upload(b"x" * 5001)
    assert (refused.value.status_code, refused.value.code) == (413, "quota_exceeded")
    assert len(list((tmp_path / "batches" / "files").iterdir())) == 1
    await batches.upload(b"x")
    with pytest.raises(openai.APIStatusError, match="each counts for 4096 at least"):
        await batches.upload(b"x")


async def test_batch_is_refused_once_what_its_key_has_exceeds_the_quota(
    start: Start, client: MakeClient, tmp_path: Path
) -> None:
    """Answers are stored in any case: without end, from one small file."""
    batches = client(await start(batches=str(tmp_path / "batches"), batches_quota_bytes=10_000))
    batch = await batches.ended(some(1))
    again: Any = {"input_file_id": batch.input_file_id, "endpoint": CHAT, "completion_window": "1h"}
    await batches.until(await batches.client.batches.create(**again))
    with pytest.raises(openai.APIStatusError, match="delete files") as refused:
        await batches.client.batches.create(**again)
    assert refused.value.code == "quota_exceeded"
    await batches.client.files.delete(batch.output_file_id or "")
    assert await batches.client.batches.create(**again)


async def test_uploads_at_once_have_the_quota_together(
    start: Start, client: MakeClient, tmp_path: Path
) -> None:
    running = await start(batches=str(tmp_path / "batches"), batches_quota_bytes=150_000)
    first = await running.client()
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    first.send(
        b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
        b"Content-Type: multipart/form-data; boundary=x\r\n\r\n" + head
    )
    await eventually(lambda: list((tmp_path / "batches" / "files").iterdir()))
    batches = client(running)
    with pytest.raises(openai.APIStatusError) as refused:
        await batches.upload(b"x" * 60_000)
    assert refused.value.code == "quota_exceeded"
    await batches.upload(b"x" * 40_000)
    await first.close()
    await eventually(lambda: len(list((tmp_path / "batches" / "files").iterdir())) == 1)
    await batches.upload(b"x" * 60_000)


async def test_files_that_nobody_knows_are_removed_once_they_are_old(
    sidecar: Running, batches: Batches, start: Start, tmp_path: Path
) -> None:
    """What a sidecar has stored when it is killed, before it is known or whole."""
    folder, yesterday = tmp_path / "batches" / "files", time.time() - 86_500
    known = await batches.upload(some(1))
    for name in ("file-old", "file-new", "file-old.1.part", "file-new.1.part"):
        (folder / name).write_bytes(b"{}")
    for name in (known, "file-old", "file-old.1.part"):
        os.utime(folder / name, (yesterday, yesterday))
    await start(batches=str(tmp_path / "batches"))  # it looks at once
    left = {known, "file-new", "file-new.1.part"}
    await eventually(lambda: {each.name for each in folder.iterdir()} == left)


async def test_upload_takes_nothing_of_the_body_budget(
    start: Start, client: MakeClient, tmp_path: Path
) -> None:
    """It may be larger than all bodies together."""
    running = await start(
        batches=str(tmp_path / "batches"), max_body_bytes=1024, body_budget_bytes=1024
    )
    assert await client(running).upload(b"x" * 1_000_000)


async def test_upload_that_breaks_off_leaves_nothing(sidecar: Running, tmp_path: Path) -> None:
    client = await sidecar.client()
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    client.send(
        b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
        b"Content-Type: multipart/form-data; boundary=x\r\n\r\n" + head + b"y" * 50_000
    )
    folder = tmp_path / "batches" / "files"
    await eventually(lambda: list(folder.iterdir()))
    await client.close()
    await eventually(lambda: not list(folder.iterdir()))


@pytest.mark.parametrize(
    ("framing", "rest", "reason"),
    [
        (("Transfer-Encoding", "chunked"), b"XYZ\r\n", "invalid_request"),
        (("Content-Length", "1000"), None, "draining"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
async def test_upload_that_is_broken_or_ended_by_a_shutdown_is_answered_and_counted(
    sidecar: Running, path: str, framing: tuple[str, str], rest: bytes | None, reason: str
) -> None:
    uploading = await sidecar.client()
    kind = ("Content-Type", "multipart/form-data; boundary=x")
    uploading.send_request("POST", path, None, [kind, framing])
    uploading.send(b"5\r\n--x\r\n\r\n")
    await eventually(lambda: any(each.request for each in sidecar.connections))
    stopping = None
    if rest is None:
        stopping = asyncio.ensure_future(sidecar.stop())
    else:
        uploading.send(rest)
    response = await uploading.response()
    assert (response.status, response.error["code"]) == (400 if rest else 503, reason)
    assert response.header("retry-after") == (None if rest else "1")
    assert await uploading.rest() == b""
    if stopping is not None:
        await stopping
    recent = sidecar.sidecar.metrics.recent()
    assert [each.outcome for each, _ in recent.all()] == [reason]


async def test_download_whose_storage_fails_ends_with_its_connection(
    sidecar: Running, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has the head already, and could take a refusal for content."""
    name = await batches.upload(b"x" * 1_000_000)
    read, calls = LocalFileOpener.read, itertools.count()

    def fails(file: LocalFileOpener, size: int) -> bytes:
        if next(calls):
            raise LookupError("an error of S3's library is no OSError")
        content: bytes = read(file, size)
        return content

    monkeypatch.setattr(LocalFileOpener, "read", fails, raising=False)
    downloading = await sidecar.client()
    downloading.send_request("GET", f"/v1/files/{name}/content", None)
    assert set((await downloading.aborted()).body) <= {ord("x")}
    recent = sidecar.sidecar.metrics.recent()
    assert recent.all()[-1][0].outcome == "storage_failed"


async def test_form_that_is_wrong_behind_its_file_leaves_nothing(
    sidecar: Running, tmp_path: Path
) -> None:
    client = await sidecar.client()
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n{}\r\n'
    kind = [("Content-Type", "multipart/form-data; boundary=x")]
    refused = await client.request("POST", "/v1/files", part + part + b"--x--\r\n", kind)
    assert (refused.status, "two files" in refused.error["message"]) == (400, True)
    assert not list((tmp_path / "batches" / "files").iterdir())


PART = b'--x\r\nContent-Disposition: form-data; name="%b"\r\n\r\n{}\r\n'


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(b"--x\r\nno field\r\n\r\n", id="no field"),
        pytest.param(b"--x\r\n" + b"A: b\r\n" * 1000, id="fields"),
        pytest.param(b"--x\r\nA: " + b"b" * 100_000, id="a long field"),
        pytest.param(PART % b"a\0b", id="NUL"),
        pytest.param(PART % b"_charset_", id="a character set"),
        pytest.param(b"a" * 1_000_000, id="a long line before it"),
        pytest.param(b"a\r\n" * 1000 + PART % b"file", id="many lines before it"),
        pytest.param(PART % b"other" * 1000 + PART % b"file", id="many parts"),
    ],
)
async def test_bad_form_is_refused(
    sidecar: Running, form: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client = await sidecar.client()
    kind = [("Content-Type", "multipart/form-data; boundary=x")]
    refused = await client.request("POST", "/v1/files", form + b"\r\n--x--\r\n", kind)
    assert (refused.status, "no valid form" in refused.error["message"]) == (400, True)
    assert "Traceback" not in caplog.text


async def test_batch_whose_body_does_not_arrive_is_refused_as_slow(
    start: Start, tmp_path: Path
) -> None:
    running = await start(batches=str(tmp_path / "batches"), body_timeout_s=0.2)
    client = await running.client()
    client.send_request("POST", "/v1/batches", None, [("Content-Length", "7")])
    response = await client.response()
    assert (response.status, response.error["code"]) == (400, "body_timeout")


async def test_client_that_waits_to_be_invited_is(sidecar: Running) -> None:
    client = await sidecar.client()
    kind = ("Content-Type", "multipart/form-data; boundary=x")
    client.send_request(
        "POST", "/v1/files", None, [kind, ("Expect", "100-continue"), ("Content-Length", "7")]
    )
    await client.seen(b"100 Continue")
    client.send(b"--x--\r\n")
    assert (await client.response()).status == 400


async def test_without_a_directory_the_paths_say_how_to_turn_them_on(start: Start) -> None:
    running = await start()
    client = await running.client()
    for path in ("/v1/files", "/v1/files/", "/v1/batches", "/v1/files/file-1/content"):
        refused = await client.get(path)
        assert refused.status == 404
        assert "ORCH_BATCHES" in json.loads(refused.body)["error"]["message"]

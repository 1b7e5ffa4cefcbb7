"""Settings, profiles and keys that are read again while requests are being served.

Keys that are there at start, or not, and that come, change and go.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from orch_sidecar import cli
from orch_sidecar.app.sidecar import Sidecar
from orch_sidecar.auth.keys import InvalidKeyFile, new_key
from orch_sidecar.config.settings import SidecarSettings
from tests.integration.held import Held, started
from tests.integration.keyed import KeyRing
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.test_process import ready, run
from tests.patience import HANG_S
from vllm_plugin.contracts import profile as profiles

KEYS: dict[str, dict[str, Any]] = {}


class Files:
    """The settings of a sidecar, and its profile, in files."""

    def __init__(self, directory: Path, engine: ScriptedEngine) -> None:
        self.path = directory / "orch.yaml"
        self.profile_path = directory / "cloud.yaml"
        self._shipped = yaml.safe_load((profiles.directory() / "cloud.yaml").read_text())
        self._settings = {
            "engine_url": engine.url,
            "profile": str(self.profile_path),
            "port": 0,
            "drain_timeout_s": 0.2,
        }
        self.write()
        self.write_profile()

    def write(self, **settings: Any) -> None:
        self.path.write_text(yaml.safe_dump(self._settings | settings))

    def write_profile(self, **bulk: Any) -> None:
        """With other rules for bulk requests."""
        admission = self._shipped["admission"]
        changed = admission | {"bulk": admission["bulk"] | bulk}
        self.profile_path.write_text(yaml.safe_dump(self._shipped | {"admission": changed}))

    @property
    def words(self) -> list[str]:
        return ["--config", str(self.path)]


@pytest.fixture
def files(tmp_path: Path, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> Files:
    """Files that a busy machine has the time to read."""
    monkeypatch.setattr("orch_sidecar.config.file_reader.MAX_READ_S", HANG_S)
    return Files(tmp_path, engine)


@pytest.fixture
async def sidecar(files: Files) -> AsyncIterator[Running]:
    """A sidecar that reads the files."""
    sidecar = Sidecar(cli.read_settings(files.words), lambda: cli.read_settings(files.words))
    running = Running(sidecar, await sidecar.start())
    await running.ready()
    yield running
    for client in running.clients:
        await client.close()
    await running.stop()


Reload = Callable[[], Awaitable[dict[str, Any]]]


@pytest.fixture
def reload(sidecar: Running) -> Reload:
    """Reloads, and returns what is reported of it."""

    async def once() -> dict[str, Any]:
        await sidecar.sidecar.reloader.reload()
        document: dict[str, Any] = (await (await sidecar.client()).get("/readyz")).json()
        return document

    return once


async def generation(running: Running) -> int:
    response = await (await running.client()).get("/v1/capabilities")
    number: int = response.json()["generation"]
    return number


async def test_settings_that_changed_hold_for_what_comes(
    sidecar: Running, files: Files, reload: Reload, caplog: pytest.LogCaptureFixture
) -> None:
    client = await sidecar.client()
    assert (await client.post(seed=1, user="x" * 3000)).status == 200
    files.write(max_body_bytes=2000, max_json_depth=5, engine_silence_s=7.0, log_level="INFO")
    with caplog.at_level(logging.INFO):
        document = await reload()
    assert document["generation"] == await generation(sidecar) == 2
    assert document["last_reload_error"] is None
    assert document["needs_restart"] == []
    assert "reloaded: max_body_bytes: 16777216 -> 2000" in caplog.messages
    refused = await client.post(seed=1, user="x" * 3000)
    assert (refused.status, refused.error["code"]) == (413, "body_too_large")
    client = await sidecar.client()
    client.send(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 5000\r\n\r\n{"
    )
    assert (await client.response()).status == 413
    assert sidecar.sidecar.watchdog._engine_silence_s == 7.0
    files.write()
    assert (await reload())["generation"] == 3
    assert (await (await sidecar.client()).post(seed=1, user="x" * 3000)).status == 200


async def test_settings_that_are_wrong_change_nothing_and_are_reported(
    sidecar: Running, files: Files, reload: Reload, caplog: pytest.LogCaptureFixture
) -> None:
    good = sidecar.sidecar.settings
    files.write(max_body_bytes="much", queue_capacity=-1, body_timeout_s=5.0)
    document = await reload()
    assert document["generation"] == await generation(sidecar) == 1
    for part in ("max_body_bytes", "'much'", "queue_capacity", "-1"):
        assert part in document["last_reload_error"]
        assert part in caplog.text
    assert sidecar.sidecar.settings is good
    assert document["ready"] is True
    health = (await (await sidecar.client()).get("/v1/pools/cloud/health")).json()
    assert health["last_reload_error"] == document["last_reload_error"]
    for text in ("port: [", "8080: 1", "- [port, 1]", "port: " + "[" * 800):
        files.path.write_text(text)
        assert "not a YAML mapping" in (await reload())["last_reload_error"]
    files.path.unlink()
    assert "no such file" in (await reload())["last_reload_error"]
    files.write(body_timeout_s=5.0)
    document = await reload()
    assert (document["generation"], document["last_reload_error"]) == (2, None)
    assert sidecar.sidecar.settings.body_timeout_s == 5.0


async def test_queue_that_is_made_shorter_loses_nobody(
    sidecar: Running, engine: ScriptedEngine, files: Files, reload: Reload, held: Held
) -> None:
    busy = await started(sidecar, n=4)
    await eventually(lambda: held.waiting)
    bulk = [("X-Orch-Class", "bulk")]
    waiting = [await started(sidecar, headers=bulk, seed=seed) for seed in range(1, 4)]
    await eventually(lambda: sidecar.queued == 3)
    files.write_profile(queue_capacity=1)
    assert (await reload())["needs_restart"] == []
    assert sidecar.queued == 3
    refused = await (await sidecar.client()).post(headers=bulk, seed=9)
    assert (refused.status, refused.error["code"]) == (429, "ADMISSION_REJECT")
    held.release()
    assert (await busy.response()).status == 200
    responses = [asyncio.ensure_future(client.response()) for client in waiting]
    while not all(response.done() for response in responses):  # one at a time, or more
        held.release_all()
        await asyncio.sleep(0.01)
    assert [response.result().json() for response in responses] == [
        {"seed": seed} for seed in range(1, 4)
    ]
    await sidecar.idle()
    files.write_profile()
    await reload()
    assert (await generation(sidecar)) == 3


async def test_log_level_is_that_of_the_file(
    sidecar: Running, files: Files, reload: Reload
) -> None:
    root = logging.getLogger()
    before = root.level
    try:
        files.write(log_level="DEBUG")
        await reload()
        assert root.level == logging.DEBUG
    finally:
        root.setLevel(before)


async def test_signal_reloads_a_process_and_ends_nothing(
    engine: ScriptedEngine, held: Held, tmp_path: Path
) -> None:
    config = tmp_path / "orch.yaml"
    config.write_text("queue_capacity: 5\n")
    flags = ("--profile=cloud", f"--engine-url={engine.url}", f"--config={config}")
    async with run(*flags) as process:
        client, busy = await process.client(), await process.client()
        await ready(client)
        busy.start(stream=False, seed=1)
        await eventually(lambda: held.waiting)

        config.write_text("queue_capacity: 0\nport: 1\n")
        process.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(HANG_S):
            while (document := (await client.get("/readyz")).json())["generation"] != 2:
                pass
        assert document["needs_restart"] == [], "the flag counts before the file"
        full = [await process.client() for _ in range(2)]
        full[0].start(stream=False, n=3, seed=2)
        await eventually(lambda: len(held.waiting) == 2)
        refused = await full[1].post(seed=3)
        assert (refused.status, refused.error["code"]) == (429, "ADMISSION_REJECT")
        held.release_all()
        assert (await busy.response()).json() == {"seed": 1}
        assert (await full[0].response()).status == 200
        process.process.terminate()
        code, logged = await process.ended()
        assert code == 0
        assert "Traceback" not in logged
        assert "queue_capacity: 5 -> 0" in logged
        for one in (client, busy, *full):
            await one.close()


STRANGER = ("Authorization", f"Bearer {new_key(b's' * 32)}")


@pytest.fixture
async def keyed(start: Start, ring: KeyRing) -> Running:
    ring.add("alice")
    ring.add("bob")
    return await start(api_keys_file=ring.path)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is looked at without the wait. To be named before the sidecar."""
    monkeypatch.setattr("orch_sidecar.app.reloader.CHECK_EVERY_S", 0.02)


async def status(running: Running, header: tuple[str, str]) -> int:
    client = await running.client()
    return (await client.get("/v1/capabilities", [header])).status


async def error(running: Running) -> str | None:
    """What the page for probes shows of the last reload."""
    document = (await (await running.client()).get("/readyz")).json()
    found: str | None = document["last_reload_error"]
    return found


async def error_metric(running: Running) -> float | None:
    """None: there is no such metric."""
    return (await running.metrics()).get("orch_api_keys_error")


async def becomes(running: Running, header: tuple[str, str], expected: int) -> None:
    """Waits until that key is answered so: the file is looked at by itself."""
    async with asyncio.timeout(HANG_S):
        while await status(running, header) != expected:  # noqa: ASYNC110 (the file has no event)
            await asyncio.sleep(0.01)


async def test_without_the_file_that_is_required_no_sidecar_starts(ring: KeyRing) -> None:
    with pytest.raises(InvalidKeyFile, match=f"api_keys_file {ring.path} does not exist"):
        Sidecar(SidecarSettings(api_keys_file=ring.path))
    async with run(f"--api-keys-file={ring.path}") as process:
        code, logged = await process.ended()
    assert code == 1
    [line] = [line for line in logged.splitlines() if "api_keys_file" in line]
    assert line.startswith(f"orch sidecar: api_keys_file {ring.path} does not exist: ")
    assert "ORCH_API_KEYS_REQUIRED" in line


async def test_without_a_file_everybody_is_served_and_that_is_logged(
    start: Start, engine: ScriptedEngine, ring: KeyRing, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        running = await start(api_keys_file=ring.path, api_keys_required=False)
    assert await error_metric(running) == 0, "it is as it was asked for"
    assert await error_metric(await start()) is None, "no file is configured"
    [logged] = [message for message in caplog.messages if "api_keys_file" in message]
    assert logged.startswith(f"api_keys_file {ring.path} does not exist")
    client = await running.client()
    assert (await client.post(headers=[STRANGER])).status == 200
    assert engine.generating[0].header("authorization") == STRANGER[1]


async def test_reload_takes_new_keys_and_drops_old_ones_and_ends_nothing(
    keyed: Running, ring: KeyRing, held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    busy = await started(keyed, headers=[ring.bearer("bob")])
    await eventually(lambda: held.waiting)
    ring.add("carol")
    ring.remove("bob")
    assert await status(keyed, ring.bearer("bob")) == 200
    with caplog.at_level(logging.INFO):
        await keyed.sidecar.reloader.reload()
    assert "reloaded API keys: new: carol; removed: bob" in caplog.messages
    assert await status(keyed, ring.bearer("carol")) == 200
    assert await status(keyed, ring.bearer("alice")) == 200
    assert await status(keyed, ring.bearer("bob")) == 401
    held.release()
    assert (await busy.response()).status == 200


@pytest.mark.usefixtures("soon")
async def test_file_that_changes_is_read_by_itself(
    keyed: Running, ring: KeyRing, caplog: pytest.LogCaptureFixture
) -> None:
    ring.add("carol")
    await becomes(keyed, ring.bearer("carol"), 200)
    ring.remove("alice")
    await becomes(keyed, ring.bearer("alice"), 401)
    assert await error_metric(keyed) == 0
    ring.path.unlink()
    await eventually(lambda: "no longer exists" in caplog.text)
    assert await error_metric(keyed) == 1
    assert await status(keyed, ring.bearer("bob")) == 200
    assert await status(keyed, STRANGER) == 401
    assert "no longer exists" in (await error(keyed) or "")
    ring.path.write_text("[]")
    await eventually(lambda: "contains no key" in caplog.text)
    ring.write()
    await eventually(lambda: keyed.sidecar.reloads.keys_error is None)
    assert await error(keyed) is None
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2, "each is logged once"
    assert all("the API keys are not reloaded" in record.message for record in errors)


@pytest.mark.usefixtures("soon")
async def test_file_system_that_hangs_blocks_neither_requests_nor_revocation_nor_the_end(
    keyed: Running, ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch_sidecar.config.file_reader.MAX_READ_S", 0.1)
    over = threading.Event()
    opens = os.open

    def hang(*arguments: Any) -> int:
        over.wait(60)
        return opens(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr("orch_sidecar.auth.key_file.os.open", hang)
        ring.remove("bob")
        await eventually(lambda: "does not respond" in (keyed.sidecar.reloads.keys_error or ""))
        assert await status(keyed, ring.bearer("alice")) == 200
    over.set()
    await becomes(keyed, ring.bearer("bob"), 401)
    await eventually(lambda: keyed.sidecar.reloads.keys_error is None)
    over.clear()
    monkeypatch.setattr("orch_sidecar.auth.key_file.os.open", hang)
    ring.add("carol")
    await eventually(lambda: "does not respond" in (keyed.sidecar.reloads.keys_error or ""))
    await asyncio.wait_for(keyed.stop(), HANG_S)
    over.set()

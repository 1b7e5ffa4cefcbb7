"""Keys that are there at start, or not, and that come, change and go while requests are served."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.app.sidecar import Sidecar
from orch_sidecar.auth.keys import InvalidKeyFile, new_key
from orch_sidecar.config.settings import SidecarSettings
from tests.integration.held import Held, started
from tests.integration.keyed import KeyRing
from tests.integration.running import Running, Start, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.test_process import run
from tests.patience import HANG_S

STRANGER = ("Authorization", f"Bearer {new_key(b's' * 32)}")


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    return KeyRing(tmp_path)


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

"""The sidecar as a process of its own: `python -m orch_sidecar sidecar`."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.integration.client import CHAT, Client
from tests.integration.held import Held
from tests.integration.otlp import http_collector
from tests.integration.running import eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.patience import HANG_S

TESTED = [sys.executable, "-W", "error", "-m", "orch_sidecar", "sidecar"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """A running sidecar, and what it has logged."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port

    async def client(self, within_s: float = HANG_S) -> Client:
        """Connects as soon as it listens."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while True:
            try:
                return await Client.connect(self.port)
            except ConnectionError:
                assert loop.time() < deadline
                assert self.process.returncode is None
                await asyncio.sleep(0.05)

    async def ended(self, within_s: float = HANG_S) -> tuple[int, str]:
        """Waits for its exit. Returns the code and all that it logged."""
        async with asyncio.timeout(within_s):
            _, logged = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, logged.decode()


@asynccontextmanager
async def run(*flags: str, **environment: str) -> AsyncIterator[Process]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *TESTED,
        f"--port={port}",
        *flags,
        env=os.environ | environment,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Process(process, port)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def ready(client: Client) -> None:
    async with asyncio.timeout(HANG_S):
        while (await client.get("/readyz")).status != 200:  # noqa: ASYNC110 (of another process)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_drains_and_exits_with_0(
    engine: ScriptedEngine, held: Held, number: signal.Signals
) -> None:
    async with run("--profile=cloud", ORCH_ENGINE_URL=engine.url) as process:
        client, other = await process.client(), await process.client()
        await ready(client)
        client.start(stream=False, seed=1)
        await eventually(lambda: held.waiting)
        process.process.send_signal(number)
        await asyncio.sleep(0.1)
        refused = await other.post()
        assert (refused.status, refused.error["code"]) == (503, "draining")
        assert refused.header("connection") == "close"
        held.release()
        assert (await client.response()).json() == {"seed": 1}
        code, logged = await process.ended()
        assert code == 0
        assert "Traceback" not in logged
        assert "Unclosed" not in logged
        for one in (client, other):
            await one.close()


async def test_signal_sends_the_spans_that_wait(engine: ScriptedEngine) -> None:
    async with http_collector() as collector:
        environment = {
            "ORCH_ENGINE_URL": engine.url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "3600000",
        }
        async with run("--profile=cloud", **environment) as process:
            client = await process.client()
            await ready(client)
            assert (await client.post(CHAT)).status == 200
            await client.close()
            assert collector.spans == []
            process.process.send_signal(signal.SIGTERM)
            code, logged = await process.ended()
        assert (code, "Traceback" in logged) == (0, False)
        assert {CHAT, "admission.wait", "engine.request"} <= {s.name for s in collector.spans}


async def test_process_takes_the_descriptors_that_its_hard_limit_allows(
    engine: ScriptedEngine,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    try:
        async with run(f"--engine-url={engine.url}", "--profile=cloud") as process:
            client = await process.client()
            allowed = resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE)
            metrics = (await client.get("/metrics")).body.decode()
            await client.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert allowed == (hard, hard)
    assert f"orch_connections_limit {(hard - 128) // 2:.1f}" in metrics


async def test_port_that_is_taken_is_one_line_and_exit_code_1(engine: ScriptedEngine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with run(f"--engine-url={engine.url}", f"--port={port}") as process:
            code, logged = await process.ended()
    assert code == 1
    assert f"cannot listen for clients on 127.0.0.1:{port} (host, port): address already" in logged
    assert "Errno" not in logged
    assert "Traceback" not in logged
    assert "Unclosed" not in logged
    assert "orch sidecar:" in logged.splitlines()[-1]


async def test_sidecar_without_an_engine_says_what_it_waits_for_and_how_to_start_it() -> None:
    async with run() as process:
        client = await process.client()
        await client.close()
        process.process.terminate()
        code, logged = await process.ended()
    assert code == 0
    [said] = [line for line in logged.splitlines() if "no engine_url" in line]
    assert "waiting for an engine at http://127.0.0.1:8000, which `orch engine " in said
    assert "orch up" in said
    async with run("--engine-url=http://127.0.0.1:1") as process:
        client = await process.client()
        await client.close()
        process.process.terminate()
        assert "no engine_url" not in (await process.ended())[1]
    async with run("--profile=none") as process:
        code, logged = await process.ended()
    assert (code, len(logged.splitlines())) == (2, 1)
    assert "no such profile" in logged


async def test_sidecar_with_batches_logs_nothing_of_the_libraries_of_its_database(
    engine: ScriptedEngine, tmp_path: Path
) -> None:
    async with run(f"--engine-url={engine.url}", f"--batches={tmp_path / 'files'}") as process:
        client = await process.client()
        await client.close()
        process.process.terminate()
        code, logged = await process.ended()
    assert code == 0
    assert {line.split()[3] for line in logged.splitlines()} <= {"orch.sidecar:", "orch.engine:"}


async def python(code: str, **environment: str) -> str:
    """Runs code in a fresh process and returns what it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        env=os.environ | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, logged = await process.communicate()
    assert process.returncode == 0, logged.decode()
    return printed.decode().strip()


BUILD = """
import asyncio, sys
from orch_sidecar.app.sidecar import Sidecar
from orch_sidecar.config.settings import SidecarSettings
async def main():
    sidecar = Sidecar(SidecarSettings(port=0, engine_url="http://127.0.0.1:1"))
    await sidecar.start()
    await sidecar.stop()
asyncio.run(main())
print([m for m in ("opentelemetry.sdk", "opentelemetry.exporter", "google.protobuf", "grpc",
       "vllm", "torch", "starlette", "openai") if m in sys.modules])
"""


async def test_without_a_collector_the_sdk_is_not_even_imported() -> None:
    assert await python(BUILD) == "[]"


async def test_with_a_collector_no_exporter_of_the_sdk_is_imported() -> None:
    loaded = await python(
        BUILD,
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1",
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )
    assert loaded == "['opentelemetry.sdk', 'google.protobuf']"

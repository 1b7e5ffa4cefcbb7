"""The engine and the sidecars in front of it, as processes that end with this one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from orch_sidecar.tools.local.stack import Child, free_port, get_json
from tests.benchmarks.policy import rig
from tests.benchmarks.soak.responses import ask

SLOTS: Final = 8
_STARTS_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.01


@contextmanager
def engine(*, scripted: bool) -> Iterator[int]:
    """Runs an engine with SLOTS slots; yields its port when it serves."""
    if not scripted:
        with rig.Engine("tiny", SLOTS, name="sidecars", core=1) as real:
            real.wait()
            yield real.port
        return
    port = free_port()
    command = [sys.executable, "-m", "tests.benchmarks.sidecars.scripted"]
    command += ["--slots", str(SLOTS), "--port", str(port)]
    child = Child("engine", command, os.environ, rig.logs() / "sidecars" / "scripted.log")
    try:
        _wait_for(child, port)
        yield port
    finally:
        child.stop(5.0)


def _wait_for(child: Child, port: int) -> None:
    until = time.monotonic() + _STARTS_WITHIN_S
    while True:
        try:
            if get_json(f"http://127.0.0.1:{port}/v1/capabilities")[0] == 200:
                return
        except OSError as error:
            if child.exit_code is not None or time.monotonic() > until:
                raise rig.NotServing("\n".join(child.last_lines(15))) from error
        time.sleep(0.05)


async def state(port: int) -> dict[str, Any]:
    """What an engine or a sidecar reports in `/v1/capabilities`. Raises OSError, TimeoutError."""
    response = await ask(port, "GET", "/v1/capabilities")
    if not response.whole:
        raise ConnectionError(response.error)
    entry: dict[str, Any] = json.loads(response.body)["engines"][0]
    return entry


async def metric(port: int, name: str) -> float:
    """The sum of a metric's samples at a sidecar."""
    text = (await ask(port, "GET", "/metrics")).body.decode()
    lines = (line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


class Sidecar:
    """One sidecar process after another on the same port."""

    def __init__(self, name: str, engine_port: int) -> None:
        self.name = name
        self.port = free_port()
        self._engine_port = engine_port
        self._starts = 0
        self._child: Child | None = None

    def start(self) -> None:
        """Starts a process; `ready` waits for it."""
        self._starts += 1
        command = [sys.executable, "-m", "orch_sidecar", "sidecar", "--profile", "cloud"]
        command += ["--port", str(self.port), "--drain-timeout-s", "1"]
        command += ["--engine-url", f"http://127.0.0.1:{self._engine_port}"]
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("ORCH_", "OTEL_"))}
        environ["ORCH_SIDECAR_KEY"] = os.environ["ORCH_SIDECAR_KEY"]
        log = rig.logs() / "sidecars" / f"{self.name}-{self._starts}.log"
        self._child = Child(self.name, command, environ, log)

    async def ready(self, within_s: float = _STARTS_WITHIN_S) -> None:
        """Returns when it admits requests. Raises TimeoutError, or NotServing if it has exited."""
        assert self._child is not None
        async with asyncio.timeout(within_s):
            while True:
                try:
                    if (await state(self.port))["state"] == "ready":
                        return
                except OSError as error:
                    if self._child.exit_code is not None:
                        lines = "\n".join(self._child.last_lines(15))
                        raise rig.NotServing(f"{self.name} exited:\n{lines}") from error
                await asyncio.sleep(_POLL_S)

    def kill(self) -> None:
        """SIGKILL."""
        if self._child is not None:
            self._child.kill()

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop(10.0)
            self._child = None


@contextmanager
def sidecars(count: int, engine_port: int) -> Iterator[list[Sidecar]]:
    """So many sidecars, started; `ready` is for the caller to wait for."""
    made = [Sidecar(f"sidecar-{number}", engine_port) for number in range(count)]
    try:
        for each in made:
            each.start()
        yield made
    finally:
        for each in made:
            each.stop()

"""Handles on the processes of a scene: the scripted engines and the sidecar."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from orch_sidecar.tools.local.stack import Child, free_port
from tests.benchmarks.soak.report import Readings, Report
from tests.benchmarks.soak.responses import ask
from tests.benchmarks.soak.scenes import PoolPlan
from tests.patience import HANG_S

_STARTS_WITHIN_S: Final = HANG_S
_SAMPLE: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
# What `orch sidecar` runs, on asyncio's own event loop: uvloop is all that it knows.
_ON_ASYNCIO: Final = (
    "import asyncio, sys, uvloop; uvloop.run = asyncio.run; "
    "from orch_sidecar.cli import main; main(sys.argv[1:])"
)


class Engine:
    """A scripted engine: one process after another on the same port."""

    def __init__(self, plan: PoolPlan, report: Report, seen: Callable[[str, str], None]) -> None:
        """`seen`: is given what the engine reports of single orders (took, began, ended)."""
        self.plan = plan
        self.port = free_port()
        self.without_usage = 0  # answers that it began and that tell no usage
        self._report = report
        self._seen = seen
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._listens = asyncio.Event()
        self._count: asyncio.Future[dict[str, int]] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Returns when it listens."""
        self._listens.clear()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.benchmarks.soak.engine"),
            *("--profile", self.plan.profile, "--slots", str(self.plan.slots)),
            *("--port", str(self.port)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._reading = asyncio.create_task(self._read())
        async with asyncio.timeout(_STARTS_WITHIN_S):
            await self._listens.wait()

    async def kill(self) -> None:
        if self._process is None or self._reading is None:
            return
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading
        self._process = None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def do(self, name: str, argument: Any = None) -> None:
        """Gives it a command."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({name: argument}).encode() + b"\n")

    async def count(self) -> dict[str, int]:
        """The sequences that it holds (`present`), those with a lease (`leased`), and how often a
        sidecar has begun to follow its state (`followed`)."""
        self._count = asyncio.get_running_loop().create_future()
        self.do("count")
        async with asyncio.timeout(HANG_S):
            return await self._count

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            message: dict[str, Any] = json.loads(line)
            if "breach" in message:
                self._report.breach(message["breach"], f"{self.plan.name}: {message.get('detail')}")
            elif "listening" in message:
                self._listens.set()
            elif "count" in message:
                if self._count is not None and not self._count.done():
                    self._count.set_result(message["count"])
            elif "without_usage" in message:
                self.without_usage += 1
            else:
                for what, key in message.items():
                    self._seen(what, key)


class SidecarProcess:
    """The sidecar, as `python -m orch_sidecar sidecar` starts it."""

    def __init__(self, loop: str, config: Path, log: Path) -> None:
        self.port, self.admin_port = free_port(), free_port()
        program = ["-m", "orch_sidecar"] if loop == "uvloop" else ["-c", _ON_ASYNCIO]
        environment = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("ORCH_", "OTEL_"))
        }  # fmt: skip
        self.log = log
        self._child = Child(
            "sidecar",
            [
                sys.executable, "-W", "error", *program, "sidecar", f"--config={config}",
                f"--port={self.port}", f"--admin-port={self.admin_port}",
            ],
            environment,
            log,
        )  # fmt: skip

    @property
    def exit_code(self) -> int | None:
        return self._child.exit_code

    async def ready(self, pools: int) -> None:
        """Returns when it listens and all of its pools are ready. Raises TimeoutError."""
        async with asyncio.timeout(_STARTS_WITHIN_S):
            while True:
                try:
                    response = await ask(self.port, "GET", "/readyz")
                    states = json.loads(response.body)["pools"].values()
                    if len(states) == pools and set(states) == {"ready"}:
                        return
                except OSError:
                    if self.exit_code is not None:
                        raise
                await asyncio.sleep(0.05)

    async def pool(self, name: str) -> tuple[str, str]:
        """Its state, and when its engine made the last report that was read. From the listener for
        operators, which asks for no API key."""
        response = await ask(self.admin_port, "GET", "/v1/capabilities")
        entries = {each["pool"]: each for each in json.loads(response.body)["engines"]}
        return entries[name]["state"], entries[name].get("observed_at", "")

    async def metrics(self) -> Metrics:
        response = await ask(self.port, "GET", "/metrics")
        return Metrics(response.body.decode())

    async def readings(self) -> Readings:
        """Of a sidecar in which nothing is."""
        metrics = await self.metrics()
        process = Path("/proc") / str(self._child.pid)
        status = (process / "status").read_text()
        threads = int(re.search(r"^Threads:\s+(\d+)", status, re.MULTILINE)[1])  # type: ignore[index]
        return Readings(
            int(metrics.sum("process_resident_memory_bytes")),
            len(list((process / "fd").iterdir())),
            threads,
            int(metrics.sum("orch_tasks")),
        )

    def reload(self) -> None:
        self._child.signal(signal.SIGHUP)

    async def stop(self) -> int:
        """SIGTERM. Returns its exit code."""
        return await asyncio.to_thread(self._child.stop, 20.0)

    def kill(self) -> None:
        self._child.kill()


class Metrics:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self._samples: list[tuple[str, dict[str, str], float]] = []
        for line in text.splitlines():
            match = None if line.startswith("#") else _SAMPLE.fullmatch(line)
            if match is not None:
                labels = dict(_LABEL.findall(match[2] or ""))
                self._samples.append((match[1], labels, float(match[3])))

    def sum(self, name: str, **labels: str) -> float:
        """The sum of all samples of that name with these labels."""
        return sum(
            value for each, theirs, value in self._samples
            if each == name and labels.items() <= theirs.items()
        )  # fmt: skip

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """The sums of a family, by one of its labels; of the samples with these labels."""
        sums: dict[str, float] = {}
        for each, theirs, value in self._samples:
            if each == name and labels.items() <= theirs.items():
                sums[theirs[label]] = sums.get(theirs[label], 0.0) + value
        return sums

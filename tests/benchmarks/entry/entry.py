"""Starts engines and a sidecar in front of all of them, and measures what it can do."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.benchmarks.entry.stall import Stall, probe
from tests.benchmarks.proxy import build, processes
from tests.benchmarks.proxy.measure import Cell, run_client
from tests.benchmarks.proxy.processes import Child
from tests.benchmarks.proxy.targets import Target
from vllm_plugin.contracts import profile as profiles
from vllm_plugin.contracts.lease_protocol import CHANGES_EVERY_S

SLOTS: Final = 64
READY_S: Final = 120.0
SCRAPES: Final = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """One sidecar in front of `engines`. CPU as a share of one core; sizes in bytes.

    `answered_per_s`: requests; `idle_cpu`: without requests, with the events of all engines.
    """

    engines: int
    answered_per_s: float
    errors: int
    busy_cpu: float
    events_per_s: float
    idle_cpu: float
    rss: float
    scrape: Stall
    scrape_cpu_s: float
    capabilities: Stall

    @property
    def cpu_s_per_request(self) -> float:
        """Seconds of CPU, without what the events of the engines take."""
        return (self.busy_cpu - self.idle_cpu) / self.answered_per_s

    @property
    def per_core_s(self) -> float:
        """Requests per second that a whole core carries beside the events, also where this machine
        had less than a core to give."""
        return (1 - self.idle_cpu) / self.cpu_s_per_request


def profile(folder: Path) -> Path:
    """The profile `cloud` without an SLO per token: the entry is measured, not the policy."""
    rules = yaml.safe_load((profiles.directory() / "cloud.yaml").read_text())
    rules["admission"]["interactive"] |= {
        "tpot_p95_ms": None,
        "batch": {"least": 1, "most": SLOTS},
    }
    file = folder / "entry.yaml"
    file.write_text(yaml.safe_dump(rules))
    return file


def address(number: int) -> str:
    """The loopback address of an engine."""
    return f"127.{1 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}"


@contextmanager
def engines(folder: Path) -> Iterator[tuple[Child, int]]:
    """Runs the engines; yields their process and the port of all."""
    port = processes.free_port()
    command = [str(build.program("upstream")), str(port), str(SLOTS), f"{1000 * CHANGES_EVERY_S:g}"]
    child = processes.start("entry-engines", command, folder)
    try:
        processes.wait_ready(child, f"http://127.0.0.1:{port}/health", 10)
        yield child, port
    finally:
        processes.stop(child)


@contextmanager
def sidecar(count: int, engine_port: int, folder: Path, checkout: Path | None) -> Iterator[Target]:
    """Runs a sidecar in front of so many engines, of another checkout if one is given; yields it
    when all engines are ready."""
    pools = [
        {
            "name": f"engine-{number}",
            "url": f"http://{address(number)}:{engine_port}",
            "profile": str(profile(folder)),
        }
        for number in range(count)
    ]
    port = processes.free_port()
    # -P: the packages of the working directory are not the ones that are meant.
    command = [sys.executable, *(["-P"] if checkout else []), "-m", "orch_sidecar", "sidecar"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    root = checkout or Path(__file__).parents[3]
    env = {"ORCH_POOLS": json.dumps(pools), "PYTHONPATH": str(root)}
    child = processes.start("entry", command, folder, env)
    try:
        until = time.monotonic() + READY_S
        while set(_states(port)) != {"ready"}:
            if not child.alive() or time.monotonic() > until:
                raise child.failed(f"{count} engines are not ready: {_states(port)[:3]}")
            time.sleep(0.2)
        yield Target("entry", port, child)
    finally:
        processes.stop(child)


def _states(port: int) -> list[str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=20) as answer:
            states: dict[str, str] = json.loads(answer.read())["pools"]
            return list(states.values())
    except OSError as error:
        return [str(error)]


def measure(
    count: int, folder: Path, clients: int, seconds: float, checkout: Path | None = None
) -> Measured:
    """Starts and measures one. Raises TargetFailed."""
    client = build.program("client")
    with engines(folder) as (engine, port), sidecar(count, port, folder, checkout) as target:
        assert target.child is not None
        pid = target.child.process.pid
        run_client(client, target, Cell("requests", clients, "loop"), 1.0)
        before, began = processes.cpu_s(pid), time.monotonic()
        report: dict[str, Any] = run_client(
            client, target, Cell("requests", clients, "loop"), seconds
        )
        busy = (processes.cpu_s(pid) - before) / (time.monotonic() - began)
        time.sleep(0.5)
        events, before, began = _events(port), processes.cpu_s(pid), time.monotonic()
        time.sleep(seconds)
        wall_s = time.monotonic() - began
        idle, events = (processes.cpu_s(pid) - before) / wall_s, _events(port) - events
        before, began = processes.cpu_s(pid), time.monotonic()
        scrape = probe(target.port, "/metrics", SCRAPES)
        spent_s = processes.cpu_s(pid) - before - idle * (time.monotonic() - began)
        capabilities = probe(target.port, "/v1/capabilities", SCRAPES)
        if not engine.alive():
            raise engine.failed("the engines left")
        return Measured(
            count,
            report["requests_per_s"],
            report["errors"],
            busy,
            events / wall_s,
            idle,
            processes.rss_mb(pid) * 1e6,
            scrape,
            max(0.0, spent_s) / SCRAPES,
            capabilities,
        )


def _events(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats", timeout=5) as answer:
        events: int = json.loads(answer.read())["state_events"]
        return events

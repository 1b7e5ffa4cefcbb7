"""Measures cells: one load on one target for some seconds, and its cost.

Runs the C client and reads the CPU time of target, engine and client.
"""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.proxy import processes
from tests.benchmarks.proxy.processes import Child
from tests.benchmarks.proxy.targets import Target

CLIENT_GRACE_S = 60.0
"""The client bounds itself (warm-up and drain, 10 s each beyond a stream); this is for a hang."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A load: connections, how they start, tokens per stream (0: not streamed), their delay."""

    name: str
    connections: int
    start: str
    tokens: int = 0
    delay_ms: float = 0.0
    per_send: int = 1
    """Tokens the engine writes at once when there is no delay; vLLM writes each alone."""
    prompt_bytes: int = 0
    """Of text beyond the usual sentence."""
    longer: float = 1.0
    """Its length as a multiple of the run's seconds: a wave of paced streams takes 2.5 s."""


CELLS = (
    Cell("requests", 32, "loop"),
    Cell("220 KB", 100, "loop", prompt_bytes=220_000),
    Cell("220 KB x10", 10, "loop", prompt_bytes=220_000),
    Cell("1 MB", 10, "loop", prompt_bytes=1_000_000),
    Cell("chunks", 32, "loop", 128),
    Cell("chunks x4", 32, "loop", 128, per_send=4),
    Cell("burst", 64, "burst", 128, 20.0, longer=2.0),
    Cell("stagger", 64, "stagger", 128, 20.0, longer=2.0),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One cell of one target in one round; CPU as a share of one core."""

    round: int
    target: str
    cell: str
    client: dict[str, Any]
    """What the client printed: counts, rates, latencies in ms, errors by kind."""
    target_cpu_s: float
    target_cpu: float
    engine_cpu: float
    client_cpu: float
    others_cpu: float
    """What everything else on the machine used meanwhile: the run was disturbed by that much."""
    rss_mb: float
    spin_ms: float
    """CPU time of a fixed Python loop beside the cell: how fast the machine was just then."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def spin_ms() -> float:
    """CPU milliseconds of a fixed loop, a gauge of the machine's speed at this moment."""
    began = time.process_time()
    total = 0
    for i in range(200_000):
        total += i
    return (time.process_time() - began) * 1000


def run_client(binary: Path, target: Target, cell: Cell, seconds: float) -> dict[str, Any]:
    command = [str(binary), str(target.port), str(cell.connections), f"{seconds:.3f}", cell.start]
    command += [str(cell.tokens), f"{cell.delay_ms:g}", str(cell.per_send)]
    command.append(str(cell.prompt_bytes))
    limit_s = seconds + cell.tokens * cell.delay_ms / 1000 + CLIENT_GRACE_S
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def measure(
    client: Path, engine: Child, target: Target, cell: Cell, seconds: float, round_: int
) -> Sample:
    """Runs one cell.

    The CPU seconds of target and engine include the client's short warm-up (two tokens per
    connection); the shares are of the client's wall time.

    Raises:
        subprocess.SubprocessError: the client itself failed or hung.
        processes.TargetFailed: the target or the engine left while it was measured.
    """
    watched = [engine] + ([target.child] if target.child else [])
    spin = spin_ms()
    before = [processes.cpu_s(c.process.pid) for c in watched]
    machine, _ = processes.machine_cpu_s()
    began = time.monotonic()
    report = run_client(client, target, cell, seconds * cell.longer)
    spent = [processes.cpu_s(c.process.pid) - b for c, b in zip(watched, before, strict=True)]
    others_s = processes.machine_cpu_s()[0] - machine - sum(spent) - report["cpu_s"]
    others_cpu = max(0.0, others_s / (time.monotonic() - began))
    for child in watched:
        if not child.alive():
            raise child.failed(f"left during {cell.name}")
    spin = (spin + spin_ms()) / 2
    target_s = spent[1] if target.child else 0.0
    wall_s = report["wall_s"]
    return Sample(
        round=round_,
        target=target.name,
        cell=cell.name,
        client=report,
        target_cpu_s=round(target_s, 3),
        target_cpu=round(target_s / wall_s, 4),
        engine_cpu=round(spent[0] / wall_s, 4),
        client_cpu=round(report["cpu_s"] / wall_s, 4),
        others_cpu=round(others_cpu, 4),
        rss_mb=round(processes.rss_mb(target.child.process.pid), 1) if target.child else 0.0,
        spin_ms=round(spin, 2),
    )

"""Holds paced streams open through one target for some seconds, and measures what they cost."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.benchmarks.proxy import processes
from tests.benchmarks.proxy.processes import Child, TargetFailed
from tests.benchmarks.proxy.targets import Target

STARTS_PER_S = 1_000.0


@dataclass(frozen=True, slots=True)
class Held:
    """What came in the window; CPU as a share of one core."""

    streams: int
    delay_ms: float
    seen: dict[str, Any]
    """What the load printed: tokens, lateness, time to first token, fairness."""
    rss_mb: float
    """Of the target with all streams open, over what it had before."""
    target_cpu: float
    engine_cpu: float

    @property
    def offered_per_s(self) -> float:
        return self.streams * 1000 / self.delay_ms

    @property
    def delivered(self) -> float:
        """Tokens that came through tokens that were due."""
        return float(self.seen["tokens_per_s"]) / self.offered_per_s

    @property
    def cpu_us_per_token(self) -> float:
        rate = float(self.seen["tokens_per_s"])
        return self.target_cpu / rate * 1e6 if rate else 0.0


def hold(
    program: Path, engine: Child, target: Target, streams: int, delay_ms: float, seconds: float
) -> Held:
    """Opens the streams, waits until each has had a token, and measures for `seconds`.

    Raises:
        TargetFailed: streams were refused or ended, or not all of them began.
    """
    children = [engine] + ([target.child] if target.child else [])
    pids = [child.process.pid for child in children]
    before_mb = processes.rss_mb(pids[-1])
    command = [str(program), str(target.port), str(streams), f"{streams / STARTS_PER_S:.2f}"]
    command += [f"{seconds:g}", f"{delay_ms:g}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as load:
        assert load.stdout is not None
        assert load.stdin is not None
        _line(load, load.stdout, streams)
        began = time.monotonic()
        cpu = [processes.cpu_s(pid) for pid in pids]
        seen = _line(load, load.stdout, streams)
        wall_s = time.monotonic() - began
        shares = [(processes.cpu_s(p) - c) / wall_s for p, c in zip(pids, cpu, strict=True)]
        rss_mb = processes.rss_mb(pids[-1]) - before_mb
        load.stdin.close()
    if seen["open"] < streams:
        raise TargetFailed(
            f"{target.name}: of {streams} streams {seen['refused']} were refused, "
            f"{seen['ended_early']} ended early"
        )
    through = target.child is not None
    return Held(
        streams, delay_ms, seen, rss_mb if through else 0.0, shares[-1] * through, shares[0]
    )


def _line(load: subprocess.Popen[bytes], out: IO[bytes], streams: int) -> dict[str, Any]:
    line = out.readline()
    if not line:
        raise TargetFailed(f"the load with {streams} streams ended with {load.wait()}")
    found: dict[str, Any] = json.loads(line)
    return found

"""Samples targets under load, and prints where each microsecond of a request and a chunk goes.

The figures of a cell are CPU times from a run without a sampler; py-spy divides their user part
among components in a run of its own. It needs the rights of a debugger: root, or CAP_SYS_PTRACE.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.benchmarks.proxy import build, processes
from tests.benchmarks.proxy.measure import CELLS, Cell, run_client
from tests.benchmarks.proxy.processes import TargetFailed
from tests.benchmarks.proxy.profiling import components
from tests.benchmarks.proxy.targets import Target

RATE_HZ = 200
PROFILED = ("requests", "chunks")
SAMPLED_S = 6.0
_PYTHON = ("sidecar", "sidecar+tracing", "floor", "plain aiohttp", "baseline")


@dataclass(slots=True)
class Profile:
    """One target under one load: microseconds of CPU per request or chunk by component."""

    target: str
    cell: str
    kernel_us: float
    user_us: float
    shares: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    functions: list[tuple[str, float]] = field(default_factory=list)
    """Our functions and their microseconds, without those they call of ours."""

    @property
    def total_us(self) -> float:
        return self.kernel_us + self.user_us

    def us(self, component: str) -> float:
        if component == components.KERNEL:
            return self.kernel_us
        return self.user_us * self.shares.get(component, 0.0)


def cpu_cost(client: Path, target: Target, cell: Cell, seconds: float) -> tuple[float, float]:
    """Microseconds of kernel and of user CPU per request or chunk."""
    assert target.child is not None
    pid = target.child.process.pid
    before = processes.user_and_system_s(pid)
    report = run_client(client, target, cell, seconds)
    after = processes.user_and_system_s(pid)
    count = report[cell.name]
    if report["errors"] or not count:
        raise TargetFailed(f"{report['errors']} errors under {cell.name}")
    user, system = (a - b for a, b in zip(after, before, strict=True))
    return system / count * 1e6, user / count * 1e6


def sample(client: Path, target: Target, cell: Cell, seconds: float, logs: Path) -> list[str]:
    """py-spy's stacks of the target under the cell's load.

    Raises:
        TargetFailed: py-spy could not attach, with its output.
    """
    assert target.child is not None
    raw = logs / f"{target.name}-{cell.name}.stacks".replace(" ", "-")
    command = [str(build.tool("py-spy")), "record", "--native", "--full-filenames"]
    command += [
        "--format",
        "raw",
        "--rate",
        str(RATE_HZ),
        "--duration",
        f"{max(1, round(seconds))}",
    ]
    command += ["--output", str(raw), "--pid", str(target.child.process.pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as spy:
        run_client(client, target, cell, seconds + 1.0)
        output = spy.communicate(timeout=60)[0].decode(errors="replace")
    if spy.returncode:
        lines = output.strip().splitlines() or ["no output"]
        raise TargetFailed(f"py-spy cannot sample {target.name}: {lines[-1]}")
    return raw.read_text().splitlines()


def profiles(
    client: Path, targets: Sequence[Target], seconds: float, rounds: int, logs: Path
) -> tuple[list[Profile], dict[str, str]]:
    """Profiles of all targets, their rounds interleaved; and why one has none."""
    found: list[Profile] = []
    failed = {t.name: t.why_not for t in targets if t.why_not}
    for cell in (c for c in CELLS if c.name in PROFILED):
        running = [t for t in targets if t.child is not None and t.name not in failed]
        costs: dict[str, list[tuple[float, float]]] = {t.name: [] for t in running}
        for _ in range(rounds):
            for target in running:
                costs[target.name].append(cpu_cost(client, target, cell, seconds))
        for target in running:
            system, user = (median(part) for part in zip(*costs[target.name], strict=True))
            profile = Profile(target.name, cell.name, system, user)
            found.append(profile)
            if target.name not in _PYTHON:
                continue
            try:
                stacks = sample(client, target, cell, SAMPLED_S, logs)
            except (TargetFailed, build.BuildFailed) as error:
                failed[target.name] = str(error)
                continue
            samples = components.fold(stacks)
            profile.shares = components.shares_of_user_time(samples)
            profile.samples = components.user_samples(samples)
            each = user / max(1, profile.samples)
            profile.functions = [(n, c * each) for n, c in components.innermost(stacks)]
    return found, failed


def report(found: Sequence[Profile], failed: dict[str, str]) -> str:
    """One table of microseconds per request and per chunk; then our costliest functions."""
    names = [f"{p.target}, per {p.cell.removesuffix('s')}" for p in found]
    lines = ["| CPU, µs | " + " | ".join(names) + " |", "|---" * (len(found) + 1) + "|"]
    for component in components.COMPONENTS:
        cells = [
            f"{p.us(component):.2f}" if p.us(component) else ("" if p.shares else "-")
            for p in found
        ]
        if any(c not in ("", "-") for c in cells):
            lines.append(f"| {component} | " + " | ".join(cells) + " |")
    lines.append("| **all** | " + " | ".join(f"**{p.total_us:.2f}**" for p in found) + " |")
    lines.append("| samples | " + " | ".join(f"{p.samples or '-'}" for p in found) + " |")
    lines += [f"{name}: {why}" for name, why in failed.items()]
    for p in found:
        if p.functions:
            lines += ["", f"{p.target}, µs per {p.cell.removesuffix('s')}, our functions:", ""]
            lines += [f"  {us:6.2f}  {name}" for name, us in p.functions]
    return "\n".join(lines)

"""`python -m tests.benchmarks.instructions`: machine instructions per request.

Unlike a time, a count of instructions is the same on a busy and on an idle machine, so that it
shows a change of one percent. Each target runs under Valgrind (Debian package valgrind), which
counts the instructions outside the kernel, and models the misses of a first-level cache of 32 kB
for code and for data. The load is that of `tests.benchmarks.proxy`. Chunks are not counted: how
many of them one read finds depends on how slow the target is.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.benchmarks.proxy import build, processes
from tests.benchmarks.proxy.measure import Cell, run_client
from tests.benchmarks.proxy.targets import (
    BASELINE,
    BASELINE_TRACED,
    FLOOR,
    PLANS,
    SIDECAR,
    TRACED,
    Plan,
    Setting,
    Target,
    baseline,
    start_engine,
    stop_all,
    traced,
)

LOAD: Final = Cell("requests", 16, "loop")
EVENTS: Final = ("Ir", "I1mr", "D1mr")
READY_S: Final = 300.0
"""A program starts thirty times slower under Valgrind."""
WARM_UP_S: Final = 4.0
"""For Python to specialize the code that runs."""


@dataclass(frozen=True, slots=True)
class Count:
    """One target, per request; `requests`: how many were counted."""

    target: str
    instructions: float
    code_misses: float
    data_misses: float
    requests: int


def counted(plan: Plan, file: Path) -> Plan:
    """The same under Valgrind, which counts nothing before it is asked to."""
    words = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--cache-sim=yes"]
    return replace(plan, command=[*words, f"--callgrind-out-file={file}", *plan.command])


def count(name: str, engine: int, dir: Path, seconds: float) -> Count:
    """Starts a target, and counts.

    Raises:
        processes.TargetFailed: it cannot be started, or leaves.
        subprocess.SubprocessError: Valgrind or the client failed.
    """
    plan_for = PLANS[name]
    if plan_for is None:
        raise processes.TargetFailed(f"{name} is no process that could be counted")
    port, file = processes.free_port(), dir / f"instructions-{name}.out"
    plan = counted(plan_for(Setting(engine, port, engine, dir)), file)
    child = processes.start(f"counted-{name}", plan.command, dir, plan.env)
    try:
        processes.wait_ready(child, f"http://127.0.0.1:{port}{plan.ready}", READY_S)
        client, target = build.program("client"), Target(name, port, child)
        run_client(client, target, LOAD, WARM_UP_S)
        instrument(child, "on")
        report = run_client(client, target, LOAD, seconds)
        instrument(child, "off")
    finally:
        stop_all([child])
    if report["errors"]:
        raise processes.TargetFailed(f"{name}: {report['errors']} requests failed")
    number, totals = report["requests"], events(file)
    instructions, code_misses, data_misses = (totals[event] / number for event in EVENTS)
    return Count(name, instructions, code_misses, data_misses, number)


def instrument(child: processes.Child, on: str) -> None:
    command = ["callgrind_control", "-i", on, str(child.process.pid)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def events(file: Path) -> dict[str, int]:
    """The totals that Valgrind wrote, by event."""
    names: list[str] = []
    for line in file.read_text().splitlines():
        key, _, values = line.partition(":")
        if key == "events":
            names = values.split()
        elif key == "totals":
            return dict(zip(names, map(int, values.split()), strict=True))
    raise processes.TargetFailed(f"{file} contains no totals: Valgrind did not end in order")


def table(counts: list[Count]) -> str:
    lines = [
        "| per request | instructions | of the first | code cache misses | data cache misses | "
        "requests |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.target} | {each.instructions:,.0f} | "
        f"{each.instructions / counts[0].instructions:.3f} | {each.code_misses:,.0f} | "
        f"{each.data_misses:,.0f} | {each.requests:,} |"
        for each in counts
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.benchmarks.instructions", description=__doc__)
    parser.add_argument("--targets", default=f"{SIDECAR},{TRACED},{FLOOR}")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each target (8)")
    parser.add_argument("--baseline", type=Path, help="another checkout, counted as well")
    given = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed: install the Debian package valgrind")
    targets = given.targets.split(",")
    if given.baseline is not None:
        other = baseline(given.baseline.resolve(strict=True))
        PLANS[BASELINE], PLANS[BASELINE_TRACED] = other, traced(other)
        targets = [BASELINE, *targets]
    if unknown := sorted(set(targets) - PLANS.keys()):
        parser.error(f"unknown: {', '.join(unknown)}")
    dir = build.cache()
    engine, port = start_engine("engine", dir)
    try:
        counts = [count(name, port, dir, given.seconds) for name in targets]
    except processes.TargetFailed as error:
        sys.exit(str(error))
    finally:
        stop_all([engine])
    print(table(counts))


if __name__ == "__main__":
    main()

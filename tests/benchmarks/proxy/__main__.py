"""The command line of the proxy benchmark, and the order of its rounds.

All targets run at the same time in front of one scripted engine. A round runs each cell on every
target in turn, so that compared measurements are seconds apart, and starts with another target
than the previous round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.benchmarks.proxy import build, processes, table
from tests.benchmarks.proxy.columns import COLUMNS, LONG, PACED, Results
from tests.benchmarks.proxy.measure import CELLS, Sample, measure
from tests.benchmarks.proxy.profiling import sampling
from tests.benchmarks.proxy.targets import (
    BASELINE,
    BASELINE_TRACED,
    DIRECT,
    PLANS,
    SIDECAR,
    SPANS_PER_REQUEST,
    TRACED,
    TRACING,
    Target,
    baseline,
    start_engine,
    start_target,
    stop_all,
    traced,
)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line's settings; ``--quick`` is for a look, not for figures."""
    parser = argparse.ArgumentParser(prog="bench-proxy", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="interleaved rounds (default 6)")
    parser.add_argument(
        "--seconds", type=float, default=1.5, help="of a cell, paced ones twice that (default 1.5)"
    )
    parser.add_argument(
        "--targets", default=",".join(PLANS), help="comma-separated (default: %(default)s)"
    )
    parser.add_argument(
        "--baseline", type=Path, help="another checkout, whose sidecar is compared with ours"
    )
    names = [cell.name for cell in CELLS]
    parser.add_argument(
        "--cells", default=",".join(names), help="comma-separated (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="1 round of 1 s")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="no comparison: where each microsecond of CPU of a request and a chunk goes",
    )
    parser.add_argument("--output", type=Path, default=build.CACHE / "result.json")
    args = parser.parse_args(argv)
    if args.quick:
        args.rounds, args.seconds = 1, 1.0
    if args.baseline is not None:
        other = baseline(args.baseline.resolve(strict=True))
        PLANS[BASELINE], PLANS[BASELINE_TRACED] = other, traced(other)
        args.targets += f",{BASELINE},{BASELINE_TRACED}"
    args.targets = list(dict.fromkeys(name.strip() for name in args.targets.split(",")))
    if unknown := [name for name in args.targets if name not in PLANS]:
        parser.error(f"unknown targets {unknown}; known: {', '.join(PLANS)}")
    args.cells = [name.strip() for name in args.cells.split(",")]
    if unknown := [name for name in args.cells if name not in names]:
        parser.error(f"unknown cells {unknown}; known: {', '.join(names)}")
    if DIRECT not in args.targets:
        args.targets.insert(0, DIRECT)
    return args


def machine() -> dict[str, Any]:
    """CPU, cores, load and versions, for the record."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in info if "model name" in line), "?")
    versions: dict[str, str] = {"python": platform.python_version(), **build.ROUTERS}
    for package in ("aiohttp", "uvloop", "orch-sidecar", "opentelemetry-sdk"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    for name, command in {"nginx": ["/usr/sbin/nginx", "-v"], "cc": ["cc", "--version"]}.items():
        try:
            done = subprocess.run(command, capture_output=True, text=True)
            versions[name] = (done.stdout or done.stderr).splitlines()[0]
        except OSError:
            versions[name] = "not installed"
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load_before": os.getloadavg(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions,
    }


def rounds(
    args: argparse.Namespace, engine: processes.Child, targets: list[Target], failed: dict[str, str]
) -> list[Sample]:
    """All rounds; a target that fails is left out from there on and noted in ``failed``."""
    client = build.program("client")
    samples: list[Sample] = []
    for round_ in range(args.rounds):
        first = round_ * 2 % len(targets)
        for cell in [each for each in CELLS if each.name in args.cells]:
            for target in targets[first:] + targets[:first]:
                if target.name in failed:
                    continue
                try:
                    sample = measure(client, engine, target, cell, args.seconds, round_)
                except (processes.TargetFailed, subprocess.SubprocessError) as error:
                    if not engine.alive():
                        raise
                    failed[target.name] = str(error)
                    show_progress(f"{target.name}: {error}")
                    continue
                samples.append(sample)
                got = sample.client
                show_progress(
                    f"round {round_ + 1}/{args.rounds} {cell.name:10}{target.name:16}"
                    f"{got['requests_per_s']:9,.0f} req/s {got['chunks_per_s']:11,.0f} chunks/s"
                    f"  errors {got['errors']}"
                )
    return samples


def show_progress(line: str) -> None:
    """Progress, apart from the tables on standard output."""
    print(line, file=sys.stderr, flush=True)


def report(results: Results, record: dict[str, Any]) -> str:
    """The tables as Markdown."""
    host = record["machine"]
    parts = [
        f"{host['cpu']}, {host['cores']} cores; medians of {record['rounds']} interleaved rounds.",
        table.speed(results),
        "",
        *table.medians(results, COLUMNS),
        "",
        "Their spread over the rounds:",
        "",
        *table.ranges(results, COLUMNS),
        "",
        *table.goals(results),
        "",
        *table.medians(results, LONG),
        "",
        "64 streams of 128 tokens, 20 ms apart; added: minus direct's of the same round.",
        "",
        *table.medians(results, PACED),
        "",
        "Ratios within a round: median (min to max); figures too small for one as they are.",
        "",
        *table.ratios(results),
        "",
        *(against_baseline(results) if BASELINE in results.order else []),
        "Engine and client limit a cell where one of them fills its core (! marks over 90 %);",
        "the direct row shows what they do with nobody between them.",
        "",
        *table.evidence(results),
        "",
        *(f"{name} was left out: {why}" for name, why in results.failed.items()),
        *(
            f"{name}: {got['trace_spans']:,} of {got['expected']:,} spans arrived "
            f"({got['trace_spans'] / got['expected']:.1%})"
            for name, got in record["traces"].items()
        ),
    ]
    return "\n".join(parts)


def against_baseline(results: Results) -> list[str]:
    """Ours through the other checkout's, with 95 % intervals."""
    lines = ["Geometric mean of the rounds' ratios to the baseline, and its 95 % interval.", ""]
    for ours, theirs in ((SIDECAR, BASELINE), (TRACED, BASELINE_TRACED)):
        lines += [*table.intervals(results, ours, theirs), ""]
    return lines


def traces(
    targets: list[Target], sinks: dict[str, int], samples: list[Sample]
) -> dict[str, dict[str, int]]:
    """How many spans of the traced targets were made and arrived. Stops them: they export all."""
    counted: dict[str, dict[str, int]] = {}
    cells = {cell.name: cell for cell in CELLS}
    for target in targets:
        if target.name not in sinks or target.child is None:
            continue
        stop_all([target.child])
        with urllib.request.urlopen(
            f"http://127.0.0.1:{sinks[target.name]}/stats", timeout=5
        ) as answer:
            counted[target.name] = json.load(answer)
        mine = [s for s in samples if s.target == target.name]
        # Each connection of a cell asks once before what is counted.
        requests = sum(s.client["requests"] + cells[s.cell].connections for s in mine)
        counted[target.name]["expected"] = requests * SPANS_PER_REQUEST
    return counted


def profile(args: argparse.Namespace, targets: list[Target], logs: Path) -> int:
    """Prints the profile instead of the comparison."""
    client = build.program("client")
    found, failed = sampling.profiles(client, targets, args.seconds, args.rounds, logs)
    text = sampling.report(found, failed)
    (logs / "profile.md").write_text(text + "\n")
    print(text)
    return 0


def main() -> int:
    """Runs the benchmark; a target that could not be measured is a row and no failure."""
    args = arguments()
    started = time.monotonic()
    record: dict[str, Any] = {"machine": machine(), "rounds": args.rounds}
    record["seconds"] = args.seconds
    with ExitStack() as stack:
        running: list[processes.Child | None] = []
        stack.callback(lambda: stop_all(reversed(running)))
        logs = build.cache()
        engine, engine_port = start_engine("engine", logs)
        running.append(engine)
        targets, sinks = [], dict[str, int]()
        for name in args.targets:
            show_progress(f"starting {name}")
            if name in TRACING:
                sink, sinks[name] = start_engine(f"sink of {name}", logs)
                running.append(sink)
            targets.append(start_target(name, engine_port, sinks.get(name, 0), logs))
            running.append(targets[-1].child)
        failed = {t.name: t.why_not for t in targets if t.why_not}
        for name, why in failed.items():
            show_progress(f"{name}: {why}")
        if args.profile:
            return profile(args, targets, logs)
        samples = rounds(args, engine, targets, failed)
        record["traces"] = traces(targets, sinks, samples)
    results = Results(args.targets, samples, failed)
    record |= {"failed": failed, "took_s": round(time.monotonic() - started, 1)}
    record["samples"] = [s.as_json() for s in samples]
    text = report(results, record)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(record, indent=1) + "\n")
    args.output.with_suffix(".md").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

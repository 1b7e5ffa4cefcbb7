"""The command line of the scale benchmark, and its tables."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from contextlib import ExitStack
from typing import Any

from orch_sidecar.wire.client_connections import connection_limit
from tests.benchmarks.proxy import build, processes
from tests.benchmarks.proxy.__main__ import machine, show_progress
from tests.benchmarks.proxy.processes import TargetFailed
from tests.benchmarks.proxy.targets import (
    DIRECT,
    SIDECAR,
    start_engine,
    start_target,
    stop_all,
)
from tests.benchmarks.scale import fleet
from tests.benchmarks.scale.hold import Held, hold

STREAMS = (100, 1_000, 3_000, 10_000)
PACES_MS = (20.0, 50.0)
PER_GPU = (500.0, 1_000.0, 2_500.0, 5_000.0)
KEPT_UP = 0.99
"""Share of the due tokens that must come within the window for a rate to count as carried."""
LATE = 0.25
"""Most of a token's interval that the median token may be late: beyond it, a queue grows."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-scale", description=__doc__)
    parser.add_argument("--streams", default=",".join(map(str, STREAMS)))
    parser.add_argument("--seconds", type=float, default=30.0, help="of a row (default 30)")
    parser.add_argument(
        "--rate", type=float, default=20_000.0, help="tokens/s of all streams (default 20000)"
    )
    parser.add_argument(
        "--paces", default=",".join(f"{p:g}" for p in PACES_MS), help="ms per token"
    )
    parser.add_argument("--search-seconds", type=float, default=5.0, help="of a step (default 5)")
    parser.add_argument("--gpus", type=int, default=1_000)
    parser.add_argument("--per-gpu", default=",".join(f"{p:g}" for p in PER_GPU), help="tokens/s")
    parser.add_argument("--target", default=SIDECAR, help="default: %(default)s")
    return parser.parse_args()


def table(head: list[str], body: list[list[str]]) -> list[str]:
    rows = [head, ["---"] * len(head), *body]
    return ["| " + " | ".join(row) + " |" for row in rows]


HEAD = [
    "streams",
    "ms per token",
    "tokens/s",
    "KB per stream",
    "CPU, % of a core",
    "CPU µs per token",
    "added per token p50 / p99, ms",
    "TTFT p50 / p99, ms",
    "Jain's index",
    "a stream's mean lateness p50 / p99 / max, ms",
]


def row(held: Held, direct: Held) -> list[str]:
    late, base = held.seen["lateness_ms"], direct.seen["lateness_ms"]
    first, means = held.seen["ttft_ms"], held.seen["stream_mean_lateness_ms"]
    return [
        f"{held.streams:,}",
        f"{held.delay_ms:g}",
        f"{held.seen['tokens_per_s']:,.0f}",
        f"{held.rss_mb * 1000 / held.streams:.1f}",
        f"{held.target_cpu * 100:.0f}",
        f"{held.cpu_us_per_token:.1f}",
        f"{late['p50'] - base['p50']:.2f} / {late['p99'] - base['p99']:.2f}",
        f"{first['p50']:.2f} / {first['p99']:.2f}",
        f"{held.seen['jain']:.5f}",
        f"{means['p50']:.2f} / {means['p99']:.2f} / {means['max']:.2f}",
    ]


class Rig:
    """One scripted engine, and the target in front of it, started anew for each measurement."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.program = build.program("holder")

    def hold(self, name: str, streams: int, delay_ms: float, seconds: float) -> Held:
        with ExitStack() as stack:
            running: list[processes.Child | None] = []
            stack.callback(lambda: stop_all(reversed(running)))
            logs = build.cache()
            engine, port = start_engine("engine", logs)
            running.append(engine)
            target = start_target(name, port, port, logs)
            running.append(target.child)
            if target.why_not:
                raise TargetFailed(target.why_not)
            held = hold(self.program, engine, target, streams, delay_ms, seconds)
        show_progress(
            f"{name:10}{streams:7,} streams {delay_ms:6g} ms {held.seen['tokens_per_s']:9,.0f} "
            f"tokens/s ({held.delivered:.3f} of them) CPU {held.target_cpu:.2f}, engine "
            f"{held.engine_cpu:.2f}, late {held.seen['lateness_ms'].get('p99', -1):.1f} ms"
        )
        return held

    def capacity(self, delay_ms: float, seconds: float, most: int) -> Held | None:
        """The most streams of this pace that it keeps up with, within 5 %."""
        carried, best = 0, None
        streams = int(10 * delay_ms)
        failing = most + 1
        while failing - carried > max(10, 0.05 * failing) and streams > carried:
            try:
                held = self.hold(self.name, streams, delay_ms, seconds)
                late_ms = held.seen["lateness_ms"].get("p50", float("inf"))
                kept_up = held.delivered >= KEPT_UP and late_ms <= delay_ms * LATE
            except TargetFailed as error:
                show_progress(str(error))
                kept_up = False
            if kept_up:
                carried, best = streams, held
                streams = min(streams * 2, most, (carried + failing) // 2)
            else:
                failing = streams
                streams = (carried + failing) // 2
        return best


def main() -> int:
    args = arguments()
    started = time.monotonic()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = connection_limit(None) - 32
    rig = Rig(args.target)
    record: dict[str, Any] = {"machine": machine(), "descriptors": hard}
    lines = [f"{hard:,} descriptors per process: at most {most:,} streams.", ""]
    body = []
    for asked in map(int, args.streams.split(",")):
        streams = min(asked, most)
        delay_ms = max(1.0, round(streams / args.rate * 1000))
        direct = rig.hold(DIRECT, streams, delay_ms, min(5.0, args.seconds))
        body.append(row(rig.hold(args.target, streams, delay_ms, args.seconds), direct))
    lines += [*table(HEAD, body), ""]
    capacities: dict[float, float] = {}
    carried = []
    for pace in map(float, filter(None, args.paces.split(","))):
        held = rig.capacity(pace, args.search_seconds, most)
        if held is not None:
            capacities[pace] = float(held.seen["tokens_per_s"])
            late = held.seen["lateness_ms"]
            carried.append(
                [
                    f"{pace:g}",
                    f"{held.streams:,}",
                    f"{capacities[pace]:,.0f}",
                    f"{held.target_cpu * 100:.0f}",
                    f"{held.cpu_us_per_token:.1f}",
                    f"{late['p50']:.2f} / {late['p99']:.2f}",
                ]
            )
    head = ["ms per token", "streams", "tokens/s", "CPU, % of a core", "CPU µs per token"]
    lines += [*table([*head, "lateness p50 / p99, ms"], carried), ""]
    lines.append(f"Sidecars of a fleet, each on one core at {fleet.HEADROOM:.0%} of that:")
    per_gpu = [float(each) for each in args.per_gpu.split(",")]
    lines += ["", *table(*fleet.rows(args.gpus, per_gpu, capacities))]
    text = "\n".join(lines)
    record |= {"text": text, "took_s": round(time.monotonic() - started, 1)}
    (build.cache() / "scale.json").write_text(json.dumps(record, indent=1) + "\n")
    (build.cache() / "scale.md").write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (TargetFailed, KeyboardInterrupt) as error:
        sys.exit(f"bench-scale: {error}")

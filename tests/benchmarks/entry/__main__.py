"""The command line of the benchmark of many engines, and its table."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.benchmarks.entry.entry import Measured, measure
from tests.benchmarks.entry.stall import Stall
from tests.benchmarks.proxy import build
from tests.benchmarks.proxy.__main__ import machine, show_progress
from tests.benchmarks.proxy.processes import TargetFailed

# One engine needs no placement, five are placed among as five hundred are.
ENGINES: Final = "1,5,50,200,500"

HEAD: Final = [
    "engines",
    "requests/s",
    "CPU µs per request",
    "requests/s of a whole core",
    "of those with the fewest",
    "`/metrics`: the event loop is blocked, ms (the most; without)",
    "MB, CPU ms",
    "`/v1/capabilities`: the same, ms",
    "state events/s",
    "their CPU, % of a core",
    "µs each",
    "KB of memory per engine",
]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-entry", description=__doc__)
    parser.add_argument("--engines", default=ENGINES, help="default: %(default)s")
    parser.add_argument("--clients", type=int, default=32, help="in a closed loop (32)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a measurement (4)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved (5)")
    parser.add_argument("--checkout", type=Path, help="measures the sidecar of another checkout")
    return parser.parse_args()


def row(measured: list[Measured], least: list[Measured]) -> list[str]:
    """The medians of all rounds; ratios are of one round."""

    def median(name: str) -> float:
        return float(statistics.median(getattr(each, name) for each in measured))

    ratios = [a.per_core_s / b.per_core_s for a, b in zip(measured, least, strict=True)]
    scrapes = [each.scrape for each in measured]
    count, fewer = measured[0].engines, least[0].engines
    base = statistics.median(each.rss for each in least)
    each_kb = (median("rss") - base) / 1000 / (count - fewer) if count > fewer else None
    events, cpu = median("events_per_s"), median("idle_cpu")
    return [
        f"{count:,}",
        f"{median('answered_per_s'):,.0f}",
        f"{1e6 * median('cpu_s_per_request'):.0f}",
        f"{median('per_core_s'):,.0f}",
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        _stalls(scrapes),
        f"{scrapes[-1].size / 1e6:.2f}, {1000 * median('scrape_cpu_s'):.0f}",
        _stalls([each.capabilities for each in measured]),
        f"{events:,.0f}",
        f"{100 * cpu:.1f}",
        f"{1e6 * cpu / events:.0f}",
        "" if each_kb is None else f"{each_kb:.0f}",
    ]


def _stalls(stalls: list[Stall]) -> str:
    """The median of all rounds, the most, and the median without a fetch."""
    median = statistics.median(each.median_ms for each in stalls)
    without = statistics.median(each.without_ms for each in stalls)
    return f"{median:.1f} ({max(each.most_ms for each in stalls):.1f}; {without:.1f})"


def main() -> int:
    args = arguments()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    folder, counts = build.cache(), sorted(map(int, args.engines.split(",")))
    found: dict[int, list[Measured]] = {count: [] for count in counts}
    for round_ in range(args.rounds):
        for count in counts:
            each = measure(count, folder, args.clients, args.seconds, args.checkout)
            found[count].append(each)
            show_progress(
                f"round {round_}: {count:4} engines {each.answered_per_s:7,.0f} requests/s, "
                f"{each.per_core_s:,.0f} of a whole core "
                f"({each.errors} errors), CPU {each.busy_cpu:.2f}, idle {each.idle_cpu:.2f} with "
                f"{each.events_per_s:,.0f} events/s, /metrics blocks {each.scrape.median_ms:.1f} "
                f"ms, /v1/capabilities {each.capabilities.median_ms:.1f} ms, "
                f"{each.rss / 1e6:.0f} MB"
            )
    least = found[counts[0]]
    rows = [HEAD, ["---"] * len(HEAD), *(row(each, least) for each in found.values())]
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in rows)
    measured = [asdict(each) for rounds in found.values() for each in rounds]
    record = {"machine": machine(), "measured": measured, "text": text}
    (folder / "entry.json").write_text(json.dumps(record, indent=1) + "\n")
    print(text)
    return 1 if any(each.errors for rounds in found.values() for each in rounds) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (TargetFailed, KeyboardInterrupt) as error:
        sys.exit(f"bench-entry: {error}")

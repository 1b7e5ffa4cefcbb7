"""`python -m tests.benchmarks.entry.placement`: does it cost anything to compare two pools of many?

The same traffic in virtual time (`virtual`), placed in one way after the other.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator

from orch_sidecar.tools.simulate.engine import EngineShape
from tests.benchmarks.entry.virtual import WAYS, Quality, Traffic, quality


def scenes(pools: int, seconds: float) -> Iterator[tuple[str, Traffic]]:
    """The table's rows: their texts, and the traffic."""
    same = (EngineShape(slots=16),) * pools
    slow = EngineShape(slots=16, t0_ms=24.0, c_ms=0.6, prefill_tokens_per_s=8_000.0)
    mixed = (*same[: pools // 2], *(slow,) * (pools - pools // 2))
    single = (EngineShape(slots=1),) * pools
    for load in (0.5, 0.85, 0.97):
        yield f"equal engines, load {load:g}", Traffic(same, load=load, seconds=seconds)
    yield "half of them three times as slow, load 0.85", Traffic(mixed, seconds=seconds)
    yield "one slot each, load 0.85", Traffic(single, seconds=seconds)
    many = Traffic(same, sidecars=8, every_s=0.25, seconds=seconds)
    yield "8 sidecars, reports every 250 ms, load 0.85", many


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.benchmarks.entry.placement", description=__doc__)
    parser.add_argument("--pools", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=30.0, help="of arrivals")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    print("| first token p50 / p95, whole answer mean / p95, s | " + " | ".join(WAYS) + " |")
    print("|---" * (len(WAYS) + 1) + "|")
    for text, traffic in scenes(given.pools, given.seconds):
        cells = []
        for way in WAYS:
            found = [quality(traffic, way, seed) for seed in range(given.seeds)]
            median = [
                statistics.median(getattr(each, name) for each in found)
                for name in Quality.__dataclass_fields__
            ]
            cells.append("{:.3f} / {:.3f}, {:.2f} / {:.2f}".format(*median))
        print(f"| {text} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

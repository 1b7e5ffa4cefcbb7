"""`python -m tests.benchmarks.traffic [SCENARIO ...]`; all of them by default."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Final

from orch_sidecar.tools.traces import factor
from tests.benchmarks.policy import rig
from tests.benchmarks.policy.record import Record
from tests.benchmarks.traffic.measure import measure
from tests.benchmarks.traffic.scenarios import KINDS, Files
from tests.benchmarks.traffic.simulated import SMALL, simulate
from tests.benchmarks.traffic.ways import WAYS

# What an operator sets for an engine this slow at prompts: about 1000 tokens/s, so that a prompt of
# 512 tokens would stop every stream for half a second.
_ENGINE: Final = "--max-num-batched-tokens 256 --long-prefill-token-threshold 64"


def _parser() -> argparse.ArgumentParser:
    plain = Files()
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.traffic", description=__doc__)
    add = parser.add_argument
    add("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(KINDS))
    add("--conv", type=Path, default=plain.conv, help="trace of conversations")
    add("--code", type=Path, default=plain.code, help="trace of code completion")
    add("--length-factor", type=factor, default=plain.length_factor)
    add("--size", choices=rig.SIZES, default="small")
    add("--slots", type=int, default=16)
    add("--rounds", type=int, default=1)
    add("--seconds", type=float, default=40.0, help="of each scenario, way and round")
    add("--slo-times", type=float, default=3.0, help="the SLO, times the p95 TTFT of one client")
    add("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    add("--engine-arguments", default=_ENGINE)
    add("--simulated", action="store_true", help="in virtual time only, without an engine")
    add("--quick", action="store_true", help="for a look, not for figures")
    add("--results", type=Path, default=rig.logs().parent / "traffic", help="directory")
    return parser


def main() -> None:
    parser = _parser()
    given = parser.parse_args()
    if unknown := [name for name in given.scenarios if name not in KINDS]:
        parser.error(f"{unknown[0]!r} is not one of {', '.join(KINDS)}")
    kinds = [KINDS[name] for name in given.scenarios or KINDS]
    if given.quick:
        given.seconds = 12.0
    files = Files(given.conv, given.code, given.length_factor)
    values = {name: str(v) if isinstance(v, Path) else v for name, v in vars(given).items()}
    record = Record("traffic", values)
    began = time.monotonic()
    if given.simulated:
        for kind in kinds:
            simulate(kind, files, SMALL, given.seconds, given.slo_times, record)
    else:
        measure(kinds, files, given, record)
    record.write(given.results / ("simulated.json" if given.simulated else "measured.json"))
    print(f"traffic took {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

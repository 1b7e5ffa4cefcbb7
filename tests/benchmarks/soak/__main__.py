"""`python -m tests.benchmarks.soak --minutes 20 [--seed N]`; exits with 1 for any violation."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import uvloop

from tests.benchmarks.soak.run import soak
from tests.benchmarks.soak.scenes import scenes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="of load, for both halves")
    parser.add_argument("--seed", type=int, help="a seed that was printed; else a new one")
    parser.add_argument("--clients", type=int, default=40, help="at once")
    parser.add_argument("--only", type=int, action="append", metavar="N", help="the Nth scene only")
    parser.add_argument("--logs", type=Path, help="where the sidecars' logs and settings stay")
    given = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    half_s = 30.0 * given.minutes
    planned = scenes(half_s, half_s)
    if given.only:
        planned = [planned[number - 1] for number in given.only]
    print(f"seed {seed}", flush=True)
    report = uvloop.run(soak(planned, seed, given.clients, given.logs))
    print(report.text())
    sys.exit(1 if report.breaches else 0)


if __name__ == "__main__":
    main()

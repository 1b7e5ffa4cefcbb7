"""`python -m tests.benchmarks.sidecars throughput|crashes|rogue`; exits with 1 for a violation."""

from __future__ import annotations

import argparse
import os
import random
import secrets
import sys

import uvloop

from tests.benchmarks.sidecars import crashes, rogue, throughput
from tests.benchmarks.sidecars.servers import engine


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sidecars")
    parser.add_argument("what", choices=("throughput", "crashes", "rogue"))
    parser.add_argument("--scripted", action="store_true", help="an engine that only counts")
    parser.add_argument("--minutes", type=float, default=3.0, help="of kills")
    parser.add_argument("--seed", type=int, help="of the kills, one that was printed; else new")
    parser.add_argument("--rounds", type=int, default=6, help="of throughput and rogue")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each window of these")
    given = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    os.environ["ORCH_SIDECAR_KEY"] = secrets.token_urlsafe()  # of the engine and its sidecars
    with engine(scripted=given.scripted) as port:
        if given.what == "throughput":
            problems = uvloop.run(throughput.run(port, given.rounds, given.seconds))
        elif given.what == "rogue":
            problems = uvloop.run(rogue.run(port, given.rounds, given.seconds))
        else:
            problems = uvloop.run(crashes.run(port, given.minutes, seed))
    print("\n".join(f"VIOLATION {each}" for each in problems) or "no violation")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

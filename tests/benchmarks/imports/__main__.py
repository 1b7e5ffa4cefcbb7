"""`python -m tests.benchmarks.imports [rounds | accuracy]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from orch_sidecar.tools.local.up import cache_directory
from tests.benchmarks.imports import accuracy, rounds


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.imports",
        description="Other tools' files imported, and how exact those tools are.",
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=("rounds", "accuracy"),
        default="rounds",
        help="rounds: both tools on the real engine, imported; accuracy: on a scripted upstream",
    )
    parser.add_argument("--fixtures", type=Path, help="write the importers' fixtures here")
    parser.add_argument("--repeat", type=int, default=3, help="runs of which accuracy has medians")
    given = parser.parse_args()
    logs = cache_directory() / "bench" / "imports"
    if given.what == "accuracy":
        accuracy.run(given.repeat, logs)
        return
    made = rounds.run(logs, given.fixtures)
    refused = [f"{each.tool}, {each.label}: {each.made}" for each in made
               if isinstance(each.made, str)]  # fmt: skip
    sys.exit("\n".join(refused) or None)


if __name__ == "__main__":
    main()

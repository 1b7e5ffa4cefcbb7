"""`python -m tests.benchmarks.published`: prints the table, writes the figures as JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Final

from tests.benchmarks.policy import rig
from tests.benchmarks.policy.record import machine, versions
from tests.benchmarks.published import models
from tests.benchmarks.published.claims import CLAIMS, sentence
from tests.benchmarks.published.engine import ARGUMENTS, SLOTS, Ways

_HEAD: Final = ("document", "figure", "published", "here", "where they differ")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.published", description=__doc__
    )
    parser.add_argument("--size", choices=rig.SIZES, default="small")
    parser.add_argument("--rounds", type=int, default=3, help="of what the engine serves: median")
    parser.add_argument("--output", type=Path, default=rig.logs() / "published.json")
    given = parser.parse_args()
    found = models.of_example() | models.of_fixed_backend() | models.of_kernel()
    with rig.Engine(given.size, SLOTS, *ARGUMENTS) as engine:
        engine.wait()
        rounds = [Ways(engine).measure() for _ in range(given.rounds)]
    found |= {key: median(each[key] for each in rounds) for key in rounds[0]}
    print(table(found))
    document = {"machine": machine(), "versions": versions(), "figures": found, "rounds": rounds}
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nwritten to {given.output}")


def table(found: dict[str, float]) -> str:
    """Returns the table in Markdown, which the documentation has as it is printed."""
    rows = [
        (
            claim.document,
            claim.what,
            claim.published,
            f"{found[claim.key]:.3g}{claim.unit}" if found[claim.key] < 1000
            else f"{found[claim.key]:,.0f}{claim.unit}",
            sentence(claim, found[claim.key]),
        )
        for claim in CLAIMS
    ]  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in (_HEAD, ("---",) * len(_HEAD), *rows))


if __name__ == "__main__":
    main()

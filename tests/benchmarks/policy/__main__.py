"""`python -m tests.benchmarks.policy SCENARIO [options]`; `all` runs each with its defaults."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final

from tests.benchmarks.policy import (
    affinity,
    batches,
    coalescing,
    keys,
    kv,
    lengths,
    mixed,
    placement,
    planning,
    rig,
    tuning,
)
from tests.benchmarks.policy.record import Record
from tests.benchmarks.policy.rig import NotServing

SCENARIOS: Final[dict[str, ModuleType]] = {
    "mixed": mixed,
    "batches": batches,
    "coalescing": coalescing,
    "kv": kv,
    "lengths": lengths,
    "placement": placement,
    "keys": keys,
    "affinity": affinity,
    "planning": planning,
    "tuning": tuning,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.policy", description=__doc__)
    commands = parser.add_subparsers(dest="scenario", metavar="SCENARIO", required=True)
    for name, module in SCENARIOS.items():
        text = (module.__doc__ or "").strip()
        command = commands.add_parser(
            name,
            help=text.splitlines()[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.options(command)
        _common(command)
    _common(commands.add_parser("all", help="each of them, with its defaults"))
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="for a look, not for figures")
    parser.add_argument("--results", type=Path, default=rig.logs(), help="directory of the results")


def main() -> None:
    parser = _parser()
    given = parser.parse_args()
    names = list(SCENARIOS) if given.scenario == "all" else [given.scenario]
    failed = []
    for name in names:
        if given.scenario == "all":
            words = [name, "--results", str(given.results), *(["--quick"] if given.quick else [])]
            mine = parser.parse_args(words)
        else:
            mine = given
        try:
            _run(mine)
        except NotServing as error:  # the other scenarios may still say something
            failed.append(f"{name}: {error}")
    sys.exit("\n".join(failed) or None)


def _run(given: argparse.Namespace) -> None:
    module = SCENARIOS[given.scenario]
    if given.quick:
        module.quick(given)
    parameters = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(given).items()
    }
    constants = {
        name.lower(): value
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, int | float)
    }
    record = Record(given.scenario, parameters | constants)
    print(f"\n{given.scenario}: {(module.__doc__ or '').strip().splitlines()[0]}", flush=True)
    began = time.monotonic()
    run: Callable[[argparse.Namespace, Record], None] = module.run
    run(given, record)
    record.write(given.results / f"{given.scenario}.json")
    print(f"{given.scenario} took {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

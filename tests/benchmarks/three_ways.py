"""`make bench-three`: measures one model under the three profiles, as one table of facts.

The engines of the profiles run one after the other, each behind a sidecar, and `orch bench`
measures each with its profile's scenario; a sweep of the batched one follows. Writes the rows
(`tps_model_gpu.csv`), their comparison with a plot, and the sweep with its plot.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orch_sidecar.tools.local import tiny_model
from orch_sidecar.tools.local.stack import Plan, Stack
from orch_sidecar.tools.local.up import cache_directory
from tests.benchmarks.engine import model_directory

SLOTS: Final = {"home": None, "cloud": 16, "offline": 32}
_READY_WITHIN_S: Final = 300.0


def orch(*words: str) -> None:
    """Runs `orch` with its output on this terminal. Raises CalledProcessError."""
    print(f"\n$ orch {' '.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "orch_sidecar", *words], check=True)


def measure(profile: str, given: argparse.Namespace, facts: Path) -> None:
    """Measures one profile's engine; adds its row."""
    plan = Plan(
        profile=profile,
        model=str(model_directory(given.size)),
        served_name=f"llama-{given.size}",
        slots=SLOTS[profile],
        engine_arguments=("--no-enable-prefix-caching",),
        environ={"HF_HUB_OFFLINE": "1"},
        log_directory=cache_directory() / "bench" / "three-ways" / profile,
    )
    with Stack(plan) as stack:
        stack.wait_ready(_READY_WITHIN_S, lambda waited, what: None)
        common = (
            *("--url", stack.url, "--input-tokens", "64", "--output-tokens", "64"),
            *("--facts", str(facts)),
        )
        for words in _scenarios(profile, given):
            output = facts.parent / f"{profile}-{words[0]}.json"
            orch("bench", *words, *common, "--output", str(output))


def _scenarios(profile: str, given: argparse.Namespace) -> Sequence[Sequence[str]]:
    seconds = ("--duration", f"{given.seconds:g}")
    if profile == "home":
        return [("single-stream", "--requests", "64", *seconds)]
    if profile == "offline":
        return [("offline", "--requests", str(given.offline_requests), "--duration", "0")]
    return [
        ("batched-online", "--rate", f"{given.rate:g}", *seconds, "--slo-ttft-ms", "1000"),
        ("sweep", *seconds, "--plot", str(given.folder / "sweep.png")),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.three_ways")
    parser.add_argument("--size", choices=sorted(tiny_model.SIZES), default="small")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=3.0, help="requests per second, online")
    parser.add_argument("--offline-requests", type=int, default=256)
    default = cache_directory() / "bench" / "three-ways"
    parser.add_argument("--folder", type=Path, default=default)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    facts = given.folder / "tps_model_gpu.csv"
    facts.unlink(missing_ok=True)
    for profile in SLOTS:
        measure(profile, given, facts)
    orch("facts", "check", str(facts))
    orch("facts", "compare", str(facts), "--plot", str(given.folder / "compare.png"))
    print(f"\nall of it: {given.folder}")


if __name__ == "__main__":
    main()

"""`make bench-engine`: one engine through the sidecar and directly, in interleaved rounds.

32 clients share 8 slots: through the sidecar 24 of them are queued there, directly in vLLM. Prints
output tokens per second and TTFT of both, and the ratio of each round.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from orch_sidecar.tools.local import tiny_model
from orch_sidecar.tools.local.stack import Plan, Stack
from orch_sidecar.tools.local.up import cache_directory
from tests.benchmarks.load import Window, closed_loop, spread

SLOTS: Final = 8
CLIENTS: Final = 32
TOKENS: Final = 128


def model_directory(size: str) -> Path:
    directory = cache_directory() / "models" / f"{size}-1"
    tiny_model.make(directory, size)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="make bench-engine")
    parser.add_argument("--size", choices=sorted(tiny_model.SIZES), default="tiny")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    plan = Plan(
        profile="cloud",
        model=str(model_directory(options.size)),
        served_name="tiny",
        slots=SLOTS,
        environ={"HF_HUB_OFFLINE": "1"},
        log_directory=cache_directory() / "bench",
    )
    with Stack(plan) as stack:
        stack.wait_ready(600, lambda waited, what: None)
        print(f"model {options.size}, {CLIENTS} clients, {SLOTS} slots, {TOKENS} tokens each")
        print("round   through  directly   ratio   TTFT p50 through / directly, s")
        ratios = []
        for number in range(options.rounds):
            order = ("through", "directly") if number % 2 else ("directly", "through")
            seen: dict[str, Window] = {}
            for way in order:
                port = stack.port if way == "through" else stack.engine_port
                seen[way] = closed_loop(
                    port, clients=CLIENTS, tokens=TOKENS, seconds=options.seconds
                )
                if seen[way].errors:
                    raise SystemExit(f"{way}: {seen[way].errors}")
            through, directly = seen["through"], seen["directly"]
            ratios.append(through.tokens_per_s / directly.tokens_per_s)
            print(
                f"{number + 1:5}   {through.tokens_per_s:7.1f}  {directly.tokens_per_s:8.1f}   "
                f"{ratios[-1]:.3f}   {through.ttft_s(50):.2f} / {directly.ttft_s(50):.2f}",
                flush=True,
            )
        print(f"tokens/s through the sidecar over directly: {spread(ratios)}, target 0.97")


if __name__ == "__main__":
    main()

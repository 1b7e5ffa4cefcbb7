"""`make bench-plugin`: the cost of the plugin in an engine, per step and in throughput.

First the plugin's own work per step is timed alone. Then two engines of the same model and slots
run in interleaved rounds, one with the plugin and a reader of its state stream, one without.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import urllib.request
from typing import TYPE_CHECKING, Final

from orch_sidecar.tools.local import tiny_model
from orch_sidecar.tools.local.engine import SERVER
from orch_sidecar.tools.local.stack import (
    ENGINE_NICENESS,
    Child,
    Plan,
    Stack,
    engine_arguments,
    free_port,
)
from orch_sidecar.tools.local.up import cache_directory
from tests.benchmarks.engine import model_directory
from tests.benchmarks.load import closed_loop, spread
from tests.vllm_plugin.examples import CONDITIONS

if TYPE_CHECKING:
    from vllm_plugin.state.engine_state import EngineState

SLOTS: Final = 8
STEPS: Final = 50_000
STEP_ROUNDS: Final = 6


def engine_state_of_a_bench() -> EngineState:
    """The state of an engine that has started."""
    from vllm_plugin.state.engine_facts import EngineFacts, Hardware
    from vllm_plugin.state.engine_state import EngineState

    hardware = Hardware("CPU", 0, "BF16")
    facts = EngineFacts(
        "0",
        "p",
        ("m",),
        "m",
        1,
        "cloud",
        "batched_online",
        True,
        SLOTS,
        "e",
        {},
        hardware,
        CONDITIONS,
    )
    return EngineState(facts)


def step_cost_us() -> tuple[float, float]:
    """Microseconds of a `record` call: when nothing changed, and when all of it did."""
    from vllm.v1.metrics.stats import (
        IterationStats,
        PrefixCacheStats,
        SchedulerIterationDetails,
        SchedulerStats,
    )

    from vllm_plugin.adapters.stat_logger import SchedulerStatLogger
    from vllm_plugin.contracts.slot_claims import Subscriber

    engine_state = engine_state_of_a_bench()
    engine_state.subscribe(Subscriber(None, lambda: None))
    logger = SchedulerStatLogger(engine_state)
    details = SchedulerIterationDetails(
        iteration_index=0,
        num_ctx_requests=0,
        num_ctx_tokens=0,
        num_generation_requests=8,
        num_generation_tokens=8,
        elapsed_ms=5.0,
    )
    stats = SchedulerStats(
        num_running_reqs=8, iteration_details=details, prefix_cache_stats=PrefixCacheStats()
    )
    iteration = IterationStats()
    iteration.num_generation_tokens = 8
    iteration.inter_token_latencies_iter = [0.005] * 8
    costs = []
    for changing in (False, True):
        began = time.process_time()
        for step in range(STEPS):
            if changing:
                stats.kv_cache_usage = (step % 1000) / 1000
            logger.record(stats, iteration)
        costs.append((time.process_time() - began) / STEPS * 1e6)
    return costs[0], costs[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="make bench-plugin")
    parser.add_argument("--size", choices=sorted(tiny_model.SIZES), default="tiny")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--alone", action="store_true", help="only the plugin's work per step")
    options = parser.parse_args()
    steps = [step_cost_us() for _ in range(STEP_ROUNDS)]
    same, changed = (spread(costs) for costs in zip(*steps, strict=True))
    print(f"per step, us: {same} when nothing changed, {changed} when it did, target 10")
    if options.alone:
        return

    plan = Plan(
        profile="cloud",
        model=str(model_directory(options.size)),
        served_name="tiny",
        slots=SLOTS,
        environ={"HF_HUB_OFFLINE": "1"},
        log_directory=cache_directory() / "bench",
    )
    port = free_port()
    plain_environ = {k: v for k, v in os.environ.items() if not k.startswith("ORCH_")}
    plain = Child(
        "engine without the plugin",
        [sys.executable, *SERVER, *engine_arguments(plan, port)],
        plain_environ
        # An allowlist that names nothing installed: the plugin's files are there, unread.
        | {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_PLUGINS": ""},
        cache_directory() / "bench" / "plain.log",
        ENGINE_NICENESS,
    )
    try:
        with Stack(plan) as stack:  # its sidecar reads the stream
            stack.wait_ready(600, lambda waited, what: None)
            _wait_health(port)
            print("round      with   without   ratio   (tokens/s)")
            ratios = []
            for number in range(options.rounds):
                order = (stack.engine_port, port) if number % 2 else (port, stack.engine_port)
                rates = {
                    p: closed_loop(p, clients=SLOTS, tokens=128, seconds=options.seconds)
                    for p in order
                }
                with_it, without = rates[stack.engine_port], rates[port]
                if with_it.errors or without.errors:
                    raise SystemExit(str(with_it.errors + without.errors))
                ratios.append(with_it.tokens_per_s / without.tokens_per_s)
                print(
                    f"{number + 1:5}   {with_it.tokens_per_s:7.1f}   {without.tokens_per_s:7.1f}   "
                    f"{ratios[-1]:.3f}",
                    flush=True,
                )
            print(f"tokens/s with the plugin over without: {spread(ratios)}")
    finally:
        plain.stop(30.0)


def _wait_health(port: int) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    raise SystemExit("the engine without the plugin did not start")


if __name__ == "__main__":
    main()

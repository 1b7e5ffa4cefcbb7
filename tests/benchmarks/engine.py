"""`make bench-engine`: one engine through the sidecar and directly, in interleaved rounds.

32 clients share 8 slots: through the sidecar 24 of them are queued there, directly in vLLM. With
as many clients as slots (`--slots 32`, `--slots 64 --clients 64`) none is queued once the batch
limit that the sidecar learns admits all; what it admits is printed. Both trace every request, to a
sink that only counts. Prints output tokens per second and TTFT of both, and the ratio of each
round. Then what a trace costs the engine's processes: short requests, each second round with a
client's decision not to sample.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from orch_sidecar.tools.local import tiny_model
from orch_sidecar.tools.local.stack import Plan, Stack
from orch_sidecar.tools.local.up import cache_directory
from tests.benchmarks.load import Window, closed_loop, spread
from tests.benchmarks.proxy import build, processes
from tests.benchmarks.proxy.targets import start_engine, stop_all

SLOTS: Final = 8
CLIENTS: Final = 32
TOKENS: Final = 128
SHORT_TOKENS: Final = 2
PARENT: Final = b"traceparent: 00-%032x-%016x-%02x\r\n"


def model_directory(size: str) -> Path:
    directory = cache_directory() / "models" / f"{size}-1"
    tiny_model.make(directory, size)
    return directory


def checked(way: str, window: Window) -> Window:
    if window.errors:
        raise SystemExit(f"{way}: {window.errors}")
    return window


def throughput(stack: Stack, clients: int, rounds: int, seconds: float) -> None:
    """Through the sidecar and directly."""
    print("round   through  directly   ratio   TTFT p50 through / directly, s")
    ratios = []
    for number in range(rounds):
        order = ("through", "directly") if number % 2 else ("directly", "through")
        seen: dict[str, Window] = {}
        for way in order:
            port = stack.port if way == "through" else stack.engine_port
            window = closed_loop(port, clients=clients, tokens=TOKENS, seconds=seconds)
            seen[way] = checked(way, window)
        through, directly = seen["through"], seen["directly"]
        ratios.append(through.tokens_per_s / directly.tokens_per_s)
        print(
            f"{number + 1:5}   {through.tokens_per_s:7.1f}  {directly.tokens_per_s:8.1f}   "
            f"{ratios[-1]:.3f}   {through.ttft_s(50):.2f} / {directly.ttft_s(50):.2f}",
            flush=True,
        )
    print(f"tokens/s through the sidecar over directly: {spread(ratios)}, target 0.99")


def own_cpu_s(pid: int) -> float:
    """CPU seconds of one process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / processes.TICKS_PER_S


def cost(stack: Stack, rounds: int, seconds: float) -> None:
    """CPU per request of the API server and of the processes below it, sampled and not."""
    assert stack.engine is not None
    server = stack.engine.pid
    below = [pid for pid in processes.tree(server) if pid != server]
    print(f"CPU per request of {SHORT_TOKENS} tokens, ms: API server / engine core and workers")
    differences = []
    for number in range(rounds):
        spent: dict[bool, tuple[float, float]] = {}
        for sampled in (True, False) if number % 2 else (False, True):
            before = own_cpu_s(server), sum(map(own_cpu_s, below))
            window = closed_loop(
                stack.engine_port,
                clients=SLOTS,
                tokens=SHORT_TOKENS,
                seconds=seconds,
                warm_s=0.0,
                fields=PARENT % (number + 1, number + 1, sampled),
            )
            checked("directly", window)
            after = own_cpu_s(server), sum(map(own_cpu_s, below))
            main, others = (
                (a - b) / window.asked * 1e3 for a, b in zip(after, before, strict=True)
            )
            spent[sampled] = main, others
        differences.append((spent[True][0] - spent[False][0]) * 1e3)
        print(
            f"{number + 1:5}   traced {spent[True][0]:.3f} / {spent[True][1]:.3f}   "
            f"not sampled {spent[False][0]:.3f} / {spent[False][1]:.3f}   "
            f"{differences[-1]:+.0f} us",
            flush=True,
        )
    low, high = min(differences), max(differences)
    print(
        f"a trace costs the API server {median(differences):.0f} us of CPU per request "
        f"({low:.0f} to {high:.0f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="make bench-engine")
    parser.add_argument("--size", choices=sorted(tiny_model.SIZES), default="tiny")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--clients", type=int, default=CLIENTS, help="in a closed loop (32)")
    parser.add_argument("--untraced", action="store_true", help="neither of them traces")
    options = parser.parse_args()
    with ExitStack() as cleanup:
        sink, sink_port = start_engine("engine-sink", build.cache())
        cleanup.callback(lambda: stop_all([sink]))
        tracing = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{sink_port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        plan = Plan(
            profile="cloud",
            model=str(model_directory(options.size)),
            served_name="tiny",
            slots=options.slots,
            environ={"HF_HUB_OFFLINE": "1"} | ({} if options.untraced else tracing),
            log_directory=cache_directory() / "bench",
        )
        stack = cleanup.enter_context(Stack(plan))
        stack.wait_ready(600, lambda waited, what: None)
        clients, slots = options.clients, options.slots
        print(f"model {options.size}, {clients} clients, {slots} slots, {TOKENS} tokens each")
        throughput(stack, clients, options.rounds, options.seconds)
        with urllib.request.urlopen(f"{stack.url}/v1/capabilities", timeout=5) as answer:
            pool = json.load(answer)["engines"][0]
            print(
                f"effective capacity: {pool['effective_capacity']} of {pool['slots_total']} slots"
            )
        cost(stack, options.rounds, options.seconds)
        with urllib.request.urlopen(f"http://127.0.0.1:{sink_port}/stats", timeout=5) as answer:
            print(f"sink: {json.load(answer)}")


if __name__ == "__main__":
    main()

"""Measures what needs no engine: the paper's schedule and kernel, a backend that takes 50 ms."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate, pairwise
from random import Random
from statistics import fmean
from typing import Any, Final, TypeVar

from orch_sidecar.tools.bench.decode.schedule import Outcome, TimedStep, run_schedule
from orch_sidecar.tools.bench.results.sweep import Curve
from tests.benchmarks.published.claims import CLAIMS

T = TypeVar("T")

# The example: 80 requests/s of 32 tokens, at most 16 at once; steps of 0.9 ms for 4 and 1.9 for 16.
RATE, TOKENS, BMAX = 80.0, 32, 16
_CURVE = Curve(0.567, 0.0833, 1.0)
# The program's own number of requests and seed.
REQUESTS, SEED = 200, 123

BACKEND_S: Final = 0.05
QUEUED: Final = 32
# "MAX_BATCH_SIZE=8", "MAX_WAIT_MS=50ms".
BATCH, WAIT_S = 8, 0.05


async def in_static_batches(
    items: Sequence[T], serve: Callable[[Sequence[T]], Awaitable[None]]
) -> None:
    """Serves items that are all there at once as the document's queue does: it collects a batch
    until it is full or its first item has waited, and runs it to its end before the next."""
    queue: asyncio.Queue[T] = asyncio.Queue()
    for item in items:
        queue.put_nowait(item)
    served = 0
    while served < len(items):
        batch = [await queue.get()]
        try:
            async with asyncio.timeout(WAIT_S):
                while len(batch) < BATCH:
                    batch.append(await queue.get())
        except TimeoutError:
            pass  # what is there is the batch
        await serve(batch)
        served += len(batch)


def of_fixed_backend() -> dict[str, float]:
    """Requests at a backend that takes 50 ms for whatever it is given: one by one, and batched."""

    async def seconds(serving: Awaitable[None]) -> float:
        began = time.monotonic()
        await serving
        return time.monotonic() - began

    async def backend(batch: Sequence[int]) -> None:
        await asyncio.sleep(BACKEND_S)

    async def serial() -> None:
        for item in range(QUEUED):
            await backend([item])

    async def both() -> tuple[float, float]:
        return await seconds(serial()), await seconds(in_static_batches(range(QUEUED), backend))

    serial_s, batched_s = asyncio.run(both())
    return {"serial": QUEUED / serial_s, "fixed": serial_s / batched_s}


def _step(batch: int) -> TimedStep:
    return TimedStep(batch, _CURVE.at(batch))


def of_example() -> dict[str, float]:
    """The paper's example with its program's loop, and with the schedule of its text."""
    random = Random(SEED)
    arrivals = list(accumulate(1000 * random.expovariate(RATE) for _ in range(REQUESTS)))
    found: dict[str, float] = {}
    for window in (6, 2):
        loop = run_schedule(arrivals, TOKENS, BMAX, window, _step, reference=True)
        schedule = run_schedule(arrivals, TOKENS, BMAX, window, _step)
        found |= {
            f"loop{window}": _p95(loop),
            f"ttft{window}": fmean(_ttft_ms(schedule)),
            f"batch{window}": fmean(step.batch for step in schedule.steps),
            f"p95{window}": _p95(schedule),
        }
    return found | {"saved": 100 * (1 - found["p952"] / found["p956"])}


def _ttft_ms(outcome: Outcome) -> list[float]:
    return [1000 * each.ttft_s for each in outcome.requests if each.ttft_s is not None]


def _p95(outcome: Outcome) -> float:
    """The percentile as the program takes it: the rank below."""
    times = sorted(_ttft_ms(outcome))
    return times[int(0.95 * (len(times) - 1))]


def of_kernel() -> dict[str, float]:
    """Decode steps on this machine, and the paper's command lines as they are printed."""
    sweep = _decode("--sweep", "1,16")["points"]
    [(one, sixteen)] = pairwise(point["tokens_per_s"] for point in sweep)
    found = {"kernel": sixteen / one}
    for claim in CLAIMS:
        if claim.key.startswith("run"):
            words = claim.what.partition("`")[2].rstrip("`").split()
            [run] = _decode(*words)["runs"]
            found[claim.key] = run["tokens_per_s_device"]
    return found


def _decode(*words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "orch_sidecar", "bench", "decode", *words, "--json", "-"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found

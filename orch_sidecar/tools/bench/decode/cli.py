"""`orch bench decode`, the decode-step microbenchmark: its options, and what it does.

The only module here that prints or writes a file.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Final

from orch_sidecar.tools.arguments import add_seed, count, counts, non_negative, positive
from orch_sidecar.tools.bench.decode.device import FMA_PER_ITERATION, Kernel, open_device
from orch_sidecar.tools.bench.decode.result import Config, DecodeResult, points_of, run_figures
from orch_sidecar.tools.bench.decode.schedule import RunStep, run_schedule
from orch_sidecar.tools.bench.load.driver import without_collection
from orch_sidecar.tools.bench.report.decode import decode_report
from orch_sidecar.tools.bench.reports import add_report, write_report
from orch_sidecar.tools.bench.results.sweep import fit
from orch_sidecar.tools.drawing.picture import require
from orch_sidecar.tools.facts.commands.terminal import Commands, add_command
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.terminal import Progress

DESCRIPTION: Final = """Decode steps on this machine's device: throughput and latency by batch.

Requests arrive at random, wait for the admission window, and are decoded in batches of up to
Bmax, one token per step; between steps waiting requests fill the batch. Arrivals and windows are
in virtual time, but the steps run: attention over a real KV cache, and weights that do not fit in
the processor's cache. PyTorch runs them on CUDA or HIP, without a GPU on the CPU. What it sees, and
with how many threads, its own variables decide: CUDA_VISIBLE_DEVICES, OMP_NUM_THREADS.

examples:
  orch bench decode                               the defaults: less than five seconds
  orch bench decode --sweep                       tokens/s by batch, and the curve t0 + c b^alpha
  orch bench decode --window-ms 6,2               TTFT with two admission windows
  orch bench decode --rate 120 --tokens 512 --bmax 64 --window-ms 20
  orch bench decode --lambda=60 --tokens=32 --bmax=8 --window_ms=3 --work=16384
                                                  as the paper's program is called
  orch bench decode --reference                   the loop of that program"""


# Without --nreq: the most requests of a schedule, and the seconds that their steps may take. The
# command takes less than five seconds on two cores, of which two are the import of torch.
NREQ: Final = 160
BUDGET_S: Final = 1.0


def add_commands(commands: Commands) -> None:
    """Adds `decode`. Defaults are those of "Throughput, Latency & Batching Policy"."""
    parser = add_command(commands, "decode", run, DESCRIPTION)
    add = parser.add_argument_group("schedule").add_argument
    add("--nreq", type=count, help=f"number of requests ({NREQ}, or what {BUDGET_S:g} s serve)")
    add("--rate", "--lambda", type=positive, default=80.0, help="mean arrivals per second (80)")
    add("--tokens", type=count, default=32, help="tokens per request (32)")
    add("--bmax", type=count, default=16, help="maximum sequences per step (16)")
    text = "admission window; with several, the same arrivals run with each (6)"
    add("--window-ms", "--window_ms", type=_windows, default=(6.0,), metavar="MS[,MS]", help=text)
    add_seed(parser, 123, "arrivals, weights and caches")
    text = "the loop of the paper's own program, which idles before each step"
    add("--reference", action="store_true", help=text)
    text = f"iterations of the paper's kernel, {FMA_PER_ITERATION} multiply-adds each: a toy model "
    text += "of that size, whose weights stay in the cache"
    add("--work", type=count, metavar="ITERATIONS", help=text)
    group = parser.add_argument_group("mode and output")
    add = group.add_argument
    text = "measure steps of these batches, without a schedule (1,2,4,8,16)"
    add("--sweep", type=counts, nargs="?", const=(1, 2, 4, 8, 16), metavar="B,B", help=text)
    add("--steps", type=count, default=100, help="steps of each batch in a sweep (100)")
    add("--json", metavar="FILE", help="write all results as JSON; -: to stdout, without text")
    page = Path("orch-bench-decode.html")
    add_report(group, f"write a page with pictures ({page})", page)


def _windows(text: str) -> tuple[float, ...]:
    return tuple(non_negative(part) for part in text.split(","))


def run(options: argparse.Namespace) -> int:
    """Runs the command with its parsed options. Raises Unavailable, OSError and ValueError."""
    if options.report is not None:
        require()
        files.check_writable(options.report)
    with without_collection():  # which the import of torch would make long
        found = _measured(options)
    document = json.dumps(found.model_dump(mode="json"), indent=2)
    page = decode_report(found)
    print(document if options.json == "-" else page.plain)
    if options.json not in (None, "-"):
        files.write(Path(options.json), f"{document}\n")
    out = sys.stderr if options.json == "-" else sys.stdout
    return 0 if write_report(page, options.report, out) else 2


def _measured(options: argparse.Namespace) -> DecodeResult:
    device = open_device(options.work)
    given = (options.rate, options.tokens, options.bmax, options.seed)
    config = Config(options.nreq or NREQ, *given, options.reference, options.work)
    kernel = Kernel(device, max(options.sweep or (config.bmax,)), config.seed)
    if options.sweep is not None:
        with Progress(f"measuring steps of up to {max(options.sweep)} sequences"):
            run_step, steps = kernel.warmed_up(options.sweep), []
            # In turns, so that a slowdown of the machine affects all batches; of a few steps each,
            # as a step that follows one of its size is faster.
            for done in range(0, options.steps, 5):
                for batch in options.sweep:
                    steps += [run_step(batch) for _ in range(done, min(done + 5, options.steps))]
        points = points_of(steps)
        curve = fit([(point.batch, point.step_ms.p50) for point in points])
        return DecodeResult(config=config, device=device, points=points, fit=curve)
    batches = range(1, config.bmax + 1)
    if options.nreq is None:
        seconds = BUDGET_S / len(options.window_ms)
        nreq = requests_within(seconds, kernel.warmed_up(batches), config)
        config = replace(config, nreq=nreq)
    random = Random(config.seed)  # noqa: S311 (no secret)
    gaps_ms = (1000 * random.expovariate(config.rate_per_s) for _ in range(config.nreq))
    arrivals_ms, runs = list(accumulate(gaps_ms)), []
    with Progress(f"serving {config.nreq} requests"):
        for window_ms in options.window_ms:
            schedule = (arrivals_ms, config.tokens, config.bmax, window_ms)
            run_step = kernel.warmed_up(batches)
            outcome = run_schedule(*schedule, run_step, reference=config.reference)
            runs.append(run_figures(window_ms, outcome))
    return DecodeResult(config=config, device=device, runs=tuple(runs))


def requests_within(seconds: float, run_step: RunStep, config: Config) -> int:
    """Returns how many requests, at most NREQ, steps serve in the given time.

    A device that is not overloaded runs for as long as requests arrive, unless each has ended when
    the next one comes.
    """
    alone, full = (min(run_step(batch).ms for _ in range(5)) for batch in (1, config.bmax))
    alone_s, full_s = (config.tokens * step_ms / 1000 for step_ms in (alone, full / config.bmax))
    request_s = max(full_s, min(alone_s, 1 / config.rate_per_s))
    return max(1, min(NREQ, int(seconds / request_s)))

"""`orch bench decode`: the decode-step microbenchmark.

The only module here that prints or writes a file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Final

from orch_sidecar.tools.bench.decode.device import Device, open_device
from orch_sidecar.tools.bench.decode.measure import Bench
from orch_sidecar.tools.bench.decode.options import BUDGET_S, NREQ
from orch_sidecar.tools.bench.decode.result import DOCUMENT, Config, DecodeResult, DeviceInfo, Run
from orch_sidecar.tools.bench.decode.result import run_figures as figures_of
from orch_sidecar.tools.bench.decode.schedule import run_schedule
from orch_sidecar.tools.bench.decode.shape import GROUP, ON_CPU, ON_GPU, Shape
from orch_sidecar.tools.bench.plan.options import InvalidOptions
from orch_sidecar.tools.bench.report.decode import decode_report
from orch_sidecar.tools.drawing.picture import require
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.terminal import Progress

_REPORT: Final = "orch-bench-decode.html"


def run(options: argparse.Namespace) -> int:
    """Runs the command with its parsed options. Raises Unavailable, OSError and ValueError."""
    report = Path(_REPORT) if options.report is True else options.report
    if report is not None:
        require()
        files.check_writable(report)
    found = _by_formula(options) if options.step_time is not None else _on_device(options)
    document = json.dumps(DOCUMENT.dump_python(found, mode="json"), indent=2)
    page = decode_report(found)
    print(document if options.json == "-" else page.plain)
    if options.json not in (None, "-"):
        files.write(Path(options.json), f"{document}\n")
    if report is not None:
        files.write(report, page.html)
        print(f"report: {report}", file=sys.stderr if options.json == "-" else sys.stdout)
    return 0


def _by_formula(options: argparse.Namespace) -> DecodeResult:
    if options.sweep is not None or options.work is not None:
        raise InvalidOptions("--sweep and --work are of a device: they exclude --step-time")
    config, curve = _config(options), options.step_time

    def run_in(window_ms: float, arrivals_ms: Sequence[float]) -> Run:
        outcome = run_schedule(
            *(arrivals_ms, config.tokens, config.bmax, window_ms, curve.at),
            reference=config.reference,
        )
        return figures_of(window_ms, outcome, ())

    return DecodeResult(config, formula=curve, runs=_runs(options, config, run_in))


def _on_device(options: argparse.Namespace) -> DecodeResult:
    config, load = _config(options), os.getloadavg()[0]  # before this program adds to it
    device = open_device(options.device, options.dtype, options.threads)
    shape = _shape(options, ON_CPU if device.kind == "cpu" else ON_GPU)
    ran = _ran(device, shape, load)
    if options.sweep is not None:
        bench = Bench(device, shape, max(options.sweep), config.seed)
        with Progress(f"measuring steps of up to {max(options.sweep)} sequences"):
            return DecodeResult(config, ran, sweep=bench.sweep(options.sweep, options.steps))
    bench = Bench(device, shape, config.bmax, config.seed)
    if options.nreq is None:
        seconds = BUDGET_S / len(options.window_ms)
        config = replace(config, nreq=bench.requests_within(seconds, config.tokens, NREQ))

    def run_in(window_ms: float, arrivals_ms: Sequence[float]) -> Run:
        with Progress(f"serving {config.nreq} requests, window {window_ms:g} ms"):
            return bench.run(arrivals_ms, config.tokens, window_ms, reference=config.reference)

    return DecodeResult(config, ran, runs=_runs(options, config, run_in))


def _config(options: argparse.Namespace) -> Config:
    nreq = options.nreq or NREQ
    given = (options.rate, options.tokens, options.bmax, options.seed)
    return Config(nreq, *given, options.reference, options.work)


def _runs(
    options: argparse.Namespace, config: Config, run_in: Callable[[float, Sequence[float]], Run]
) -> tuple[Run, ...]:
    """Returns the run of each window, all on the same arrivals."""
    random = Random(config.seed)  # noqa: S311 (no secret)
    gaps_ms = (1000 * random.expovariate(config.rate_per_s) for _ in range(config.nreq))
    arrivals_ms = list(accumulate(gaps_ms))
    return tuple(run_in(window_ms, arrivals_ms) for window_ms in options.window_ms)


def _shape(options: argparse.Namespace, plain: Shape) -> Shape:
    if options.work is not None:
        sizes = ("layers", "hidden", "heads", "kv_heads", "context")
        if given := [name for name in sizes if getattr(options, name) is not None]:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise InvalidOptions(f"--work {options.work} determines the model: omit {names}")
        return Shape.of_work(options.work)
    heads = options.heads or plain.heads
    try:
        return Shape(
            layers=options.layers or plain.layers,
            hidden=options.hidden or plain.hidden,
            heads=heads,
            kv_heads=options.kv_heads or max(1, heads // GROUP),
            context=options.context or plain.context,
        )
    except ValueError as error:
        raise InvalidOptions(str(error)) from error


def _ran(device: Device, shape: Shape, load: float) -> DeviceInfo:
    on_cpu = device.kind == "cpu"
    return DeviceInfo(
        kind=device.kind,
        name=device.name,
        torch=str(device.torch.__version__),
        dtype=device.dtype_name,
        threads=device.threads,
        cache_bytes=device.cache_bytes,
        weight_bytes=shape.weights * device.dtype.itemsize,
        kv_bytes_per_sequence=shape.kv_values * device.dtype.itemsize,
        shape=shape,
        cpus=os.cpu_count() if on_cpu else None,
        busy_threads=load if on_cpu else None,
    )

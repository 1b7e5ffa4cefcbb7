"""`orch bench decode`: the decode-step microbenchmark.

The only module here that prints or writes a file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from orch_sidecar.tools.bench.decode.device import Device, DeviceUnavailable, open_device
from orch_sidecar.tools.bench.decode.figures import Run
from orch_sidecar.tools.bench.decode.measure import Bench, run_by_formula
from orch_sidecar.tools.bench.decode.options import (
    BUDGET_S,
    DESCRIPTION,
    EPILOG,
    NREQ,
    add_arguments,
)
from orch_sidecar.tools.bench.decode.report import (
    Config,
    DeviceInfo,
    busy_line,
    device_line,
    document,
    overload_line,
    run_lines,
    sweep_text,
    window_line,
)
from orch_sidecar.tools.bench.decode.schedule import poisson_ms
from orch_sidecar.tools.bench.decode.shape import GROUP, ON_CPU, ON_GPU, Shape
from orch_sidecar.tools.bench.plan.options import InvalidOptions
from orch_sidecar.tools.bench.report.decode import decode_report
from orch_sidecar.tools.drawing.picture import PlotUnavailable, require
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.terminal import Progress

_REPORT: Final = "orch-bench-decode.html"

_HELP: Final = "decode steps on this machine's device: throughput and latency by batch"


def add_command(commands: Any) -> None:
    """Adds `decode` to the result of `add_subparsers`; its `run` default is the function `run`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "decode",
        help=_HELP,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    add_arguments(parser)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 where nothing could be measured, 2 for bad usage."""
    parser = argparse.ArgumentParser(prog="orch bench")
    add_command(parser.add_subparsers(dest="command", metavar="COMMAND", required=True))
    return run(parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Runs the command with its parsed options; returns the exit code like `main`."""
    try:
        report = Path(_REPORT) if options.report is True else options.report
        if report is not None:
            require()
            files.check_writable(report)
        found = _by_formula(options) if options.step_time is not None else _on_device(options)
        if options.json not in (None, "-"):
            Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        if report is not None:
            files.write(report, decode_report(found).html)
            _print(options, f"report: {report}")
    except InvalidOptions as error:
        print(f"orch bench decode: {error}", file=sys.stderr)
        return 2
    except (DeviceUnavailable, PlotUnavailable, OSError) as error:
        print(f"orch bench decode: {error}", file=sys.stderr)
        return 1
    if options.json == "-":
        print(json.dumps(found, indent=2))
    return 0


def _by_formula(options: argparse.Namespace) -> dict[str, Any]:
    if options.sweep is not None:
        raise InvalidOptions("--sweep measures a device: it cannot be combined with --step-time")
    config, curve = _config(options, options.nreq or NREQ), options.step_time
    arrivals_ms = poisson_ms(config.rate_per_s, config.nreq, config.seed)
    runs = []
    for window_ms in options.window_ms:
        found = run_by_formula(arrivals_ms, config.tokens, config.bmax, window_ms, curve.at)
        runs.append(found)
        _print_run(options, config, found, work=0)
    _print_windows(options, runs)
    return document(config, curve, runs)


def _on_device(options: argparse.Namespace) -> dict[str, Any]:
    config = _config(options, options.nreq or NREQ)
    load = os.getloadavg()[0]  # before this program adds to it
    device = open_device(options.device, options.dtype, options.threads)
    shape = _shape(options, ON_CPU if device.kind == "cpu" else ON_GPU)
    ran = _ran(device, shape)
    if options.sweep is not None:
        bench = Bench(device, shape, max(options.sweep), config.seed)
        _print_device(options, ran, load)
        with Progress(f"measuring steps of up to {max(options.sweep)} sequences"):
            sweep = bench.sweep(options.sweep, options.steps)
        _print(options, sweep_text(sweep))
        return document(config, ran, sweep=sweep)
    bench = Bench(device, shape, config.bmax, config.seed)
    _print_device(options, ran, load)
    if options.nreq is None:
        seconds = BUDGET_S / len(options.window_ms)
        config = _config(options, bench.requests_within(seconds, config.tokens, NREQ))
    arrivals_ms = poisson_ms(config.rate_per_s, config.nreq, config.seed)
    runs = []
    for window_ms in options.window_ms:
        with Progress(f"serving {config.nreq} requests, window {window_ms:g} ms"):
            runs.append(bench.run(arrivals_ms, config.tokens, window_ms))
        _print_run(options, config, runs[-1], shape.multiply_adds)
    _print_windows(options, runs)
    return document(config, ran, runs)


def _print(options: argparse.Namespace, text: str) -> None:
    if options.json != "-":
        print(text, flush=True)


def _print_device(options: argparse.Namespace, ran: DeviceInfo, load: float) -> None:
    _print(options, device_line(ran))
    if ran.kind == "cpu" and (line := busy_line(load, os.cpu_count() or 1)):
        _print(options, line)


def _print_run(options: argparse.Namespace, config: Config, run: Run, work: int) -> None:
    _print(options, run_lines(config, run, work))
    if line := overload_line(config, run):
        _print(options, line)


def _print_windows(options: argparse.Namespace, runs: Sequence[Run]) -> None:
    for later in runs[1:]:
        _print(options, window_line(runs[0], later))


def _config(options: argparse.Namespace, nreq: int) -> Config:
    return Config(nreq, options.rate, options.tokens, options.bmax, options.seed)


def _shape(options: argparse.Namespace, plain: Shape) -> Shape:
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


def _ran(device: Device, shape: Shape) -> DeviceInfo:
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
    )

"""Formats a run and a sweep as text and as a JSON document.

The four lines CONFIG, GPU time, TTFT and E2E have the format of the reference program of
"Throughput, Latency & Batching Policy", so that its parsers work here too. "GPU" stands for any
device: the line DEVICE names it. `work` is the multiply-adds of a sequence in a step, 0 if a
formula replaces the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from orch_sidecar.tools.bench.decode.figures import LARGE_BATCH, Point, Run, Sweep
from orch_sidecar.tools.bench.decode.shape import Shape
from orch_sidecar.tools.bench.results.fit import Curve
from orch_sidecar.tools.facts.labels.figures import Spread

SCHEMA: Final = "orch.bench.decode/1"

# Of the CPUs: what an idle machine's own services do not reach.
_BUSY_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Config:
    """The options of the schedule."""

    nreq: int
    rate_per_s: float
    tokens: int
    bmax: int
    seed: int


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The device and the model. `threads`, `cache_bytes`: None where unknown or not applicable."""

    kind: str
    name: str
    torch: str
    dtype: str
    threads: int | None
    cache_bytes: int | None
    weight_bytes: int
    kv_bytes_per_sequence: int
    shape: Shape

    @property
    def in_cache(self) -> bool:
        """Whether the weights stay in the cache between steps, unlike those of a real model."""
        return self.cache_bytes is not None and self.weight_bytes <= self.cache_bytes


def run_lines(config: Config, run: Run, work: int) -> str:
    """Returns the four lines, one of steps, and those of gaps if they were measured."""
    ttft, e2e = run.ttft_ms, run.e2e_ms
    lines = [
        f"CONFIG nreq={config.nreq} lambda={config.rate_per_s:.1f}/s tokens={config.tokens} "
        f"Bmax={config.bmax} window_ms={run.window_ms:.2f} work={work}",
        f"GPU time: {run.device_ms:.3f} ms  | tokens: {run.tokens}  | "
        f"tokens/sec (GPU): {run.tokens_per_s_device:.2f}",
        f"TTFT mean={ttft.mean:.3f} ms  p95={ttft.p95:.3f} ms",
        f"E2E  mean={e2e.mean:.3f} ms  p95={e2e.p95:.3f} ms",
        f"STEPS {run.steps} of {run.tokens / run.steps:.2f} sequences  | "
        f"tokens/sec (with admission): {run.tokens_per_s:.2f}",
    ]
    if run.gap_ms is not None:
        lines.append(f"GAPS between steps {_gap_text(run.gap_ms)}")
    if run.gap_large_ms is not None:
        lines.append(f"GAPS at b>={LARGE_BATCH} {_gap_text(run.gap_large_ms)}")
    return "\n".join(lines)


def device_line(ran: DeviceInfo) -> str:
    """Returns the device and model, with a note if the weights fit in the cache."""
    shape, threads = ran.shape, f" threads={ran.threads}" if ran.threads is not None else ""
    cache = "unknown" if ran.cache_bytes is None else f"{ran.cache_bytes / 1e6:.1f} MB"
    line = (
        f"DEVICE {ran.kind} ({ran.name}) torch={ran.torch}{threads} dtype={ran.dtype} "
        f"layers={shape.layers} hidden={shape.hidden} heads={shape.heads}/{shape.kv_heads} "
        f"context={shape.context} weights={ran.weight_bytes / 1e6:.1f} MB cache={cache} "
        f"kv={ran.kv_bytes_per_sequence / 1e6:.2f} MB/sequence"
    )
    if ran.in_cache:
        line += "\nNOTE the weights fit in the cache: steps are faster than decoding from memory"
    return line


def overload_line(config: Config, run: Run) -> str:
    """Says that requests arrive faster than full steps serve them; empty if they do not."""
    wanted, most = config.rate_per_s * config.tokens, run.full_tokens_per_s(config.bmax)
    if most is None or wanted < most:
        return ""
    return (
        f"OVERLOADED {config.rate_per_s:g} requests/s of {config.tokens} tokens need {wanted:.0f} "
        f"tokens/s, steps of {config.bmax} generate {most:.0f}: the queue grows until the last "
        f"arrival, and TTFT and E2E tell its length; --rate {0.8 * most / config.tokens:.3g} is "
        "kept up with"
    )


def busy_line(load: float, cpus: int) -> str:
    """Says that other programs use the CPUs that steps run on; empty if they hardly do.

    `load`: runnable threads before the run, as a mean of the last minute.
    """
    if load < _BUSY_SHARE * cpus:
        return ""
    return (
        f"BUSY other programs keep {load:.1f} threads running on {cpus} CPUs: steps take longer "
        "than on an idle machine, and differently long"
    )


def window_line(first: Run, last: Run) -> str:
    """Compares the p95 TTFT of two windows on the same arrivals."""
    change = 100 * (last.ttft_ms.p95 / first.ttft_ms.p95 - 1)
    return (
        f"WINDOW {first.window_ms:g} -> {last.window_ms:g} ms: "
        f"p95 TTFT {first.ttft_ms.p95:.3f} -> {last.ttft_ms.p95:.3f} ms ({change:+.1f} %)"
    )


_HEAD: Final = (
    *("b", "tokens/s", "step ms", "p95", "speed-up", "efficiency", "gap ms p50", "p95", "max"),
)


def sweep_text(sweep: Sweep) -> str:
    """Returns a table, the total speed-up and the fitted curve."""
    rows = [list(_HEAD), *(_cells(point) for point in sweep.points)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    first, last = sweep.points[0], sweep.points[-1]
    lines.append(
        f"b {first.batch} -> {last.batch}: {last.speed_up:.2f} times the tokens/s, "
        f"{'more' if sweep.monotonic else 'not more'} with each b"
    )
    if sweep.fit is None:
        lines.append("t(b): not fitted, which needs three different batches")
    else:
        found = sweep.fit
        lines.append(
            f"t(b) = {found.t0:.4g} + {found.c:.4g} * b^{found.alpha:.2f} ms, "
            f"largest deviation {100 * found.worst_error:.1f} %"
        )
    return "\n".join(lines)


def document(
    config: Config, ran: DeviceInfo | Curve, runs: Sequence[Run] = (), sweep: Sweep | None = None
) -> dict[str, Any]:
    """Returns all results as a JSON object. Either `device` or `formula` is null.

    `runs`: one per window; `sweep`: null without one. Times in ms, sizes in bytes.
    """
    return {
        "schema": SCHEMA,
        "config": asdict(config),
        "device": asdict(ran) if isinstance(ran, DeviceInfo) else None,
        "formula": asdict(ran) if isinstance(ran, Curve) else None,
        "runs": [_run_document(run) for run in runs],
        "sweep": None if sweep is None else {**asdict(sweep), "monotonic": sweep.monotonic},
    }


def _run_document(run: Run) -> dict[str, Any]:
    by_batch = {
        str(batch): {"steps": count, **asdict(step_ms)}
        for batch, (count, step_ms) in run.step_ms.items()
    }
    return {**asdict(run), "step_ms": by_batch}


def _cells(point: Point) -> list[str]:
    gap = point.gap_ms
    return [
        str(point.batch),
        f"{point.tokens_per_s:.1f}",
        f"{point.step_ms.p50:.3f}",
        f"{point.step_ms.p95:.3f}",
        f"{point.speed_up:.2f}",
        f"{100 * point.efficiency:.0f} %",
        *(("-",) * 3 if gap is None else (f"{ms:.3f}" for ms in (gap.p50, gap.p95, gap.most))),
    ]


def _gap_text(gap: Spread) -> str:
    return f"median={gap.p50:.3f} ms  p95={gap.p95:.3f} ms  max={gap.most:.3f} ms"

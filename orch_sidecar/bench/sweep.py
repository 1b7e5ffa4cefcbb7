"""Runs of one load at several concurrencies: how throughput and latency move with the batch.

Pure but for `plot`. The batch of a point is what the engine's steps say (their mean), and
without them the number of clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from orch_sidecar.bench.fit import Fit, fit
from orch_sidecar.bench.result import Result
from orch_sidecar.facts.plot import Kind, Panel, Series, Style, draw

# Points of the fitted curve in a plot, so that it looks like one.
_CURVE_POINTS: Final = 60


class Point(BaseModel):
    """One concurrency. Speed-up is against the smallest, efficiency is speed-up per sequence."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    clients: int
    batch_mean: float | None
    batch_largest: int | None
    tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    tpot_p50_ms: float | None
    speed_up: float
    efficiency: float
    status: str
    reasons: list[str]


class FitTold(BaseModel):
    """TPOT in ms as t0 + c * b^alpha of the clients; `worst_error` as a part of a point."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    t0_ms: float
    c_ms: float
    alpha: float
    worst_error: float


class Sweep(BaseModel):
    """All of it, as a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal["orch.sweep/1"] = "orch.sweep/1"
    points: list[Point]
    fit: FitTold | None
    results: list[Result]


def sweep_of(results: Sequence[Result]) -> Sweep:
    """The sweep of results of closed loops, in ascending order of their clients.

    One in which nothing was answered has no point.
    """
    points: list[Point] = []
    first: tuple[int, float] | None = None
    for result in results:
        figures, clients = result.figures, result.scenario.clients
        if figures is None or clients is None:
            continue
        if first is None:
            first = clients, figures.tokens_per_s
        speed_up = figures.tokens_per_s / first[1]
        points.append(
            Point(
                clients=clients,
                batch_mean=None if result.batches is None else result.batches.mean,
                batch_largest=None if result.batches is None else result.batches.largest,
                tokens_per_s=figures.tokens_per_s,
                ttft_p50_ms=None if figures.ttft_ms is None else figures.ttft_ms.p50,
                ttft_p95_ms=None if figures.ttft_ms is None else figures.ttft_ms.p95,
                tpot_p50_ms=None if figures.tpot_ms is None else figures.tpot_ms.p50,
                speed_up=round(speed_up, 4),
                efficiency=round(speed_up * first[0] / clients, 4),
                status=result.status,
                reasons=result.reasons,
            )
        )
    return Sweep(points=points, fit=_told(_fit(points)), results=list(results))


def _fit(points: Sequence[Point]) -> Fit | None:
    return fit([(p.clients, p.tpot_p50_ms) for p in points if p.tpot_p50_ms])


def _told(found: Fit | None) -> FitTold | None:
    if found is None:
        return None
    return FitTold(
        t0_ms=round(found.t0, 4),
        c_ms=round(found.c, 4),
        alpha=found.alpha,
        worst_error=round(found.worst_error, 4),
    )


_HEAD: Final = ("clients", "batch", "tokens/s", "TTFT p50", "p95 ms", "TPOT ms", "x", "eff.", "")


def text(sweep: Sweep) -> str:
    """A table, and the fit."""
    rows = [_HEAD]
    rows += [
        (
            str(point.clients),
            _number(point.batch_mean, 2),
            _number(point.tokens_per_s, 1),
            _number(point.ttft_p50_ms, 1),
            _number(point.ttft_p95_ms, 1),
            _number(point.tpot_p50_ms, 2),
            f"{point.speed_up:.2f}",
            f"{point.efficiency:.2f}",
            point.status,
        )
        for point in sweep.points
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEAD))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    found = sweep.fit
    if found is None:
        lines.append("TPOT: fewer than three concurrencies say nothing of its form")
    else:
        lines.append(
            f"TPOT = {found.t0_ms:.3f} + {found.c_ms:.3f} * b^{found.alpha:.2f} ms, "
            f"at most {found.worst_error:.0%} off"
        )
    return "\n".join(lines)


def plot(sweep: Sweep, path: Path) -> None:
    """Tokens/s, TTFT and TPOT against the clients. Raises ValueError, PlotUnavailable, OSError."""
    points = sweep.points
    xs = tuple(float(point.clients) for point in points)
    ideal = tuple(points[0].tokens_per_s * x / xs[0] for x in xs) if points else ()
    speed = [_series("measured", xs, [p.tokens_per_s for p in points], Style())]
    if len(xs) > 1:
        speed.append(Series("in proportion", Kind.CURVE, xs, ideal, Style(line=":", colour=2)))
    panels = [_panel("Throughput", "generated tokens per second", speed)]
    ttft = [
        _series("p50", xs, [p.ttft_p50_ms for p in points], Style()),
        _series("p95", xs, [p.ttft_p95_ms for p in points], Style("--", "s", 1)),
    ]
    tpot = [_series("p50", xs, [p.tpot_p50_ms for p in points], Style())]
    if sweep.fit is not None:
        curve, last = sweep.fit, xs[-1]
        at = [xs[0] * (last / xs[0]) ** (n / _CURVE_POINTS) for n in range(_CURVE_POINTS + 1)]
        fitted = tuple(curve.t0_ms + curve.c_ms * x**curve.alpha for x in at)
        tpot.append(Series("t0 + c b^alpha", Kind.CURVE, tuple(at), fitted, Style("--", "", 2)))
    panels.append(_panel("Time to first token", "ms", ttft))
    panels.append(_panel("Time per output token", "ms", tpot))
    model = sweep.results[0].engine.model if sweep.results else ""
    draw(path, f"{model}: throughput and latency by concurrency", [p for p in panels if p.series])


def _panel(title: str, y_label: str, series: Sequence[Series | None]) -> Panel:
    there = tuple(each for each in series if each is not None)
    return Panel(title, "requests at a time", y_label, there)


def _series(
    name: str, xs: Sequence[float], ys: Sequence[float | None], style: Style
) -> Series | None:
    known = [(x, y) for x, y in zip(xs, ys, strict=True) if y is not None]
    if not known:
        return None
    return Series(
        name, Kind.MEASURED, tuple(x for x, _ in known), tuple(y for _, y in known), style
    )


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"

"""Runs of one load at several concurrencies: how throughput and latency move with the batch.

Pure but for `plot`. The batch of a point is what the engine's steps say (their mean), and
without them the number of clients. One client on an engine that batches is a point like the
others, and as a result invalid: nothing was batched. What is invalid for any other reason, or was
not brought to its end, is shown and takes no part in the fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from orch_sidecar.tools.bench.results.fact import NO_FACT
from orch_sidecar.tools.bench.results.fit import Fit, fit
from orch_sidecar.tools.bench.results.result import Document, Result
from orch_sidecar.tools.facts.comparison.plot import Kind, Panel, Series, Style, draw
from orch_sidecar.tools.facts.evidence.verdict import NEVER_BATCHED

# Points of the fitted curve in a plot, so that it looks like one.
_CURVE_POINTS: Final = 60


class Point(Document):
    """One concurrency. Speed-up is against the smallest, efficiency is speed-up per client."""

    clients: int
    batch_mean: float | None
    batch_largest: int | None
    tokens_per_s: float
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    tpot_p50_ms: float | None
    speed_up: float
    efficiency: float
    client_bottleneck: bool
    status: str
    reasons: list[str]

    @property
    def batch(self) -> float:
        """Sequences in a step, on average."""
        return self.batch_mean or float(self.clients)


class FitTold(Document):
    """TPOT in ms as t0 + c * b^alpha of the batch, rounded; `worst_error` as a part of a point."""

    t0_ms: float
    c_ms: float
    alpha: float
    worst_error: float


class Sweep(Document):
    """All of it, as a file. `complete`: all that were asked for were measured to their end;
    `ended_by`: what came between."""

    schema_version: Literal["orch.sweep/1"] = "orch.sweep/1"
    complete: bool
    ended_by: str
    points: list[Point]
    fit: FitTold | None
    results: list[Result]


def sweep_of(results: Sequence[Result], ended_by: str = "") -> Sweep:
    """The sweep of results of closed loops, in ascending order of their clients.

    One in which nothing was answered has no point. `ended_by`: why there are not all, if so.
    """
    points: list[Point] = []
    first: tuple[int, float] | None = None
    for result in results:
        figures, clients = result.figures, result.scenario.clients
        if figures is None or clients is None or not figures.tokens_per_s:
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
                client_bottleneck=bool(result.client.bottleneck),
                status=result.status,
                reasons=result.reasons,
            )
        )
    return Sweep(
        complete=not ended_by,
        ended_by=ended_by,
        points=points,
        fit=_told(_fit([point for point in points if is_sound(point)])),
        results=list(results),
    )


def is_sound(found: Point | Result) -> bool:
    """Whether it was measured as it was meant to be, on an engine that batches or may."""
    if found.status in NO_FACT:
        return found.reasons == [NEVER_BATCHED] and _clients_of(found) == 1
    return True


def _clients_of(found: Point | Result) -> int | None:
    return found.clients if isinstance(found, Point) else found.scenario.clients


def _fit(points: Sequence[Point]) -> Fit | None:
    # More clients than slots wait, and decode in no larger a batch.
    return fit([(p.batch, p.tpot_p50_ms) for p in points if p.tpot_p50_ms])


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
    """A table, the fit, and why points are worth what they are."""
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
        lines.append("TPOT: fewer than three batches say nothing of its form")
    else:
        lines.append(
            f"TPOT = {found.t0_ms:.3f} + {found.c_ms:.3f} * b^{found.alpha:.2f} ms, "
            f"at most {found.worst_error:.0%} off"
        )
    if sweep.points:
        lines.append(f"x and eff. are against {_clients(sweep.points[0])}")
    for point in sweep.points:
        lines += [f"  {_clients(point)}: {reason}" for reason in point.reasons]
        if point.client_bottleneck:
            lines.append(f"  {_clients(point)}: the client may be the bottleneck")
    if not sweep.complete:
        lines.append(f"INCOMPLETE: {sweep.ended_by}")
    return "\n".join(lines)


def plot(sweep: Sweep, path: Path) -> None:
    """Tokens/s and TTFT against the clients, TPOT against the batch; for one point at least.

    Raises ValueError, PlotUnavailable, OSError.
    """
    points = sweep.points
    xs = tuple(float(point.clients) for point in points)
    ideal = tuple(points[0].tokens_per_s * x / xs[0] for x in xs)
    speed = [_series("measured", xs, [p.tokens_per_s for p in points], Style())]
    if len(xs) > 1:
        speed.append(Series("in proportion", Kind.CURVE, xs, ideal, Style(line=":", color=2)))
    ttft = [
        _series("p50", xs, [p.ttft_p50_ms for p in points], Style()),
        _series("p95", xs, [p.ttft_p95_ms for p in points], Style("--", "s", 1)),
    ]
    clients = "requests at a time"
    panels = [
        _panel("Throughput", clients, "generated tokens per second", speed),
        _panel("Time to first token", clients, "ms", ttft),
        _panel("Time per output token", "sequences in a step", "ms", _tpot(sweep)),
    ]
    model = sweep.results[0].engine.model_name
    draw(path, f"{model}: throughput and latency by concurrency", [p for p in panels if p.series])


def _tpot(sweep: Sweep) -> list[Series | None]:
    points = sorted(sweep.points, key=lambda point: point.batch)
    xs = [point.batch for point in points]
    series = [_series("p50", xs, [p.tpot_p50_ms for p in points], Style())]
    curve, first, last = sweep.fit, xs[0], xs[-1]
    if curve is not None:
        at = tuple(first * (last / first) ** (n / _CURVE_POINTS) for n in range(_CURVE_POINTS + 1))
        fitted = tuple(curve.t0_ms + curve.c_ms * x**curve.alpha for x in at)
        series.append(Series("t0 + c b^alpha", Kind.CURVE, at, fitted, Style("--", "", 2)))
    return series


def _panel(title: str, x_label: str, y_label: str, series: Sequence[Series | None]) -> Panel:
    return Panel(title, x_label, y_label, tuple(each for each in series if each is not None))


def _series(
    name: str, xs: Sequence[float], ys: Sequence[float | None], style: Style
) -> Series | None:
    known = [(x, y) for x, y in zip(xs, ys, strict=True) if y is not None]
    if not known:
        return None
    return Series(
        name, Kind.MEASURED, tuple(x for x, _ in known), tuple(y for _, y in known), style
    )


def _clients(point: Point) -> str:
    return "1 client" if point.clients == 1 else f"{point.clients} clients"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"

"""Plots a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orch_sidecar.tools.bench.results.sweep import Sweep
from orch_sidecar.tools.facts.comparison.plot import Kind, Panel, Series, Style, draw

# Points of the fitted curve, enough to look smooth.
_CURVE_POINTS: Final = 60


def plot_sweep(sweep: Sweep, path: Path) -> None:
    """Plots tokens/s and TTFT by clients and TPOT by batch, of at least one point.

    Raises ValueError, PlotUnavailable, OSError.
    """
    points = sweep.points
    xs = tuple(float(point.clients) for point in points)
    ideal = tuple(points[0].tokens_per_s * x / xs[0] for x in xs)
    speed = [_series("measured", xs, [p.tokens_per_s for p in points], Style())]
    if len(xs) > 1:
        speed.append(Series("linear scaling", Kind.CURVE, xs, ideal, Style(line=":", color=2)))
    ttft = [
        _series("p50", xs, [p.ttft_p50_ms for p in points], Style()),
        _series("p95", xs, [p.ttft_p95_ms for p in points], Style("--", "s", 1)),
    ]
    clients = "concurrent requests"
    panels = [
        _panel("Throughput", clients, "generated tokens per second", speed),
        _panel("Time to first token", clients, "ms", ttft),
        _panel("Time per output token", "sequences per step", "ms", _tpot(sweep)),
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

"""Plots a sweep.

Points that are invalid or incomplete are drawn as hollow markers without a line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from orch_sidecar.tools.bench.results.sweep import Point, Sweep
from orch_sidecar.tools.facts.comparison.plot import draw
from orch_sidecar.tools.facts.comparison.series import Kind, Panel, Series, Style

# Points of the fitted curve, enough to look smooth.
_CURVE_POINTS: Final = 60

_P50: Final = Style()
_P95: Final = Style("--", "s", 1)
_UNSOUND: Final = "invalid or incomplete: not counted"

_Value = Callable[[Point], float | None]


def plot_sweep(sweep: Sweep, path: Path) -> None:
    """Plots tokens/s and TTFT by clients and TPOT by batch, of at least one point.

    Raises ValueError, PlotUnavailable, OSError.
    """
    clients = "concurrent requests"
    panels = [
        Panel("Throughput", clients, "generated tokens per second", _throughput(sweep)),
        Panel("Time to first token", clients, "ms", _ttft(sweep)),
        Panel("Time per output token", "sequences per step", "ms", _tpot(sweep)),
    ]
    model = sweep.results[0].engine.model_name
    draw(path, f"{model}: throughput and latency by concurrency", [p for p in panels if p.series])


def _throughput(sweep: Sweep) -> tuple[Series, ...]:
    series = _measured("measured", sweep.points, _clients, lambda p: p.tokens_per_s, _P50)
    sound = [point for point in sweep.points if point.is_sound]
    if len(sound) > 1:
        base, xs = sound[0], tuple(map(_clients, sound))
        ideal = tuple(base.tokens_per_s * x / base.clients for x in xs)
        series.append(Series("linear scaling", Kind.CURVE, xs, ideal, Style(line=":", color=2)))
    return tuple(series)


def _ttft(sweep: Sweep) -> tuple[Series, ...]:
    return (
        *_measured("p50", sweep.points, _clients, lambda p: p.ttft_p50_ms, _P50),
        *_measured("p95", sweep.points, _clients, lambda p: p.ttft_p95_ms, _P95),
    )


def _tpot(sweep: Sweep) -> tuple[Series, ...]:
    points = sorted(sweep.points, key=lambda point: point.batch)
    series = _measured("p50", points, lambda p: p.batch, lambda p: p.tpot_p50_ms, _P50)
    curve = sweep.fit
    if curve is not None:
        fitted_to = [point.batch for point in points if point.is_sound and point.tpot_p50_ms]
        first, last = fitted_to[0], fitted_to[-1]
        at = tuple(first * (last / first) ** (n / _CURVE_POINTS) for n in range(_CURVE_POINTS + 1))
        fitted = tuple(curve.t0_ms + curve.c_ms * x**curve.alpha for x in at)
        series.append(Series("t0 + c b^alpha", Kind.CURVE, at, fitted, Style("--", "", 2)))
    return tuple(series)


def _clients(point: Point) -> float:
    return float(point.clients)


def _measured(
    name: str, points: Sequence[Point], x: _Value, y: _Value, style: Style
) -> list[Series]:
    """Returns a series of the sound points and one of the others, as far as there are any."""
    apart = replace(style, line="", hollow=True)
    named = {True: (name, style), False: (f"{name}, {_UNSOUND}", apart)}
    found = []
    for is_sound, (text, look) in named.items():
        known = [
            (at, value)
            for point in points
            if point.is_sound is is_sound and (at := x(point)) and (value := y(point)) is not None
        ]
        if known:
            xs, ys = zip(*known, strict=True)
            found.append(Series(text, Kind.MEASURED, xs, ys, look))
    return found

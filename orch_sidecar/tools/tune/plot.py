"""Plots the step-time curve and the tokens per second of each batch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from orch_sidecar.tools.facts.comparison.plot import draw
from orch_sidecar.tools.facts.comparison.series import Kind, Panel, Series, Style
from orch_sidecar.tools.tune.decision import Decision
from orch_sidecar.tools.tune.steps import StepCurve

_POINTS: Final = 60


def plot_curve(curve: StepCurve, decision: Decision, tpot_slo_ms: float | None, path: Path) -> None:
    """Writes the plot. Raises ValueError, PlotUnavailable, OSError."""
    last = max(curve.largest, decision.slots)
    at = tuple(last ** (number / _POINTS) for number in range(_POINTS + 1))
    batches = tuple(float(point.batch) for point in curve.points)
    times = [
        Series("measured", Kind.MEASURED, batches, tuple(p.ms for p in curve.points), Style("")),
        Series("t0 + c b^alpha", Kind.CURVE, at, tuple(map(curve.ms, at)), Style("--", "", 2)),
    ]
    if tpot_slo_ms is not None:
        bound = (tpot_slo_ms, tpot_slo_ms)
        times.append(Series("SLO", Kind.CURVE, (at[0], at[-1]), bound, Style(":", "", 1)))
    rates = tuple(1000 * point.batch / point.ms for point in curve.points)
    fitted = tuple(1000 * batch / curve.ms(batch) for batch in at)
    slots = float(decision.slots)
    throughput = [
        Series("measured", Kind.MEASURED, batches, rates, Style("")),
        Series("fit", Kind.CURVE, at, fitted, Style("--", "", 2)),
        Series(
            f"{decision.slots} slots",
            Kind.MEASURED,
            (slots,),
            (curve.tokens_per_s(decision.slots),),
            Style("", "s", 1, hollow=True),
        ),
    ]
    label = "sequences per step"
    panels = [
        Panel("Decode step", label, "ms", tuple(times)),
        Panel("Throughput", label, "generated tokens per second", tuple(throughput)),
    ]
    draw(path, "Step time and throughput by batch", panels)

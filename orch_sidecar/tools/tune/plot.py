"""Charts of the step-time curve and of the tokens per second of each batch."""

from __future__ import annotations

from orch_sidecar.tools.bench.report.sweep import fitted
from orch_sidecar.tools.drawing.chart import Chart, Marked, Series, Style, by_size
from orch_sidecar.tools.tune.decision import Decision
from orch_sidecar.tools.tune.steps import StepCurve


def charts_of(curve: StepCurve, decision: Decision, tpot_slo_ms: float | None) -> list[Chart]:
    """Returns the time of a step, and the tokens per second, by batch."""
    last = float(max(curve.largest, decision.slots))
    points = curve.points
    batches = [float(point.batch) for point in points]
    rates = [1000 * point.batch / point.ms for point in points]
    off = f"The curve is off by at most {curve.fit.worst_error:.0%}."
    times = [
        Series("measured", batches, [point.ms for point in points], Style("")),
        fitted("t0 + c b^alpha", curve.ms, 1.0, last),
    ]
    throughput = [
        Series("measured", batches, rates, Style("")),
        fitted("fit", lambda batch: 1000 * batch / curve.ms(batch), 1.0, last),
        Series(
            f"{decision.slots} slots",
            [float(decision.slots)],
            [curve.tokens_per_s(decision.slots)],
            Style("", "s", 2, hollow=True),
        ),
    ]
    slo = () if tpot_slo_ms is None else (Marked("SLO", tpot_slo_ms, True, horizontal=True),)
    label = "sequences per step"
    return [
        by_size("Decode step", off, label, "ms", times, linear=True, marked=slo),
        by_size("Throughput", off, label, "tokens/s", throughput, linear=False),
    ]

"""Formats and draws what `orch tune` found. Pure."""

from __future__ import annotations

from typing import Final

from orch_sidecar.tools.bench.report.sweep import fitted
from orch_sidecar.tools.bench.runs.rate import RateSearch
from orch_sidecar.tools.drawing.chart import Chart, Marked, Series, Style, by_size
from orch_sidecar.tools.drawing.texts import aligned
from orch_sidecar.tools.tune.decision import Decision, bounds
from orch_sidecar.tools.tune.engine_model import FullSlots, MemoryBound
from orch_sidecar.tools.tune.steps import StepCurve

_BAR: Final = 40
_HEAD: Final = ("batch", "steps", "ms/step", "fit ms", "tokens/s")


def curve_text(curve: StepCurve, tpot_slo_ms: float | None) -> str:
    """Returns a table of the measured batches with a bar of tokens/s for each."""
    best = max(point.tokens_per_s for point in curve.points)
    cells, bars = [], [""]
    for point in curve.points:
        fit_ms, rate = curve.ms(point.batch), point.tokens_per_s
        figures = (f"{point.ms:.2f}", f"{fit_ms:.2f}", f"{rate:.1f}")
        cells.append((str(point.batch), str(point.steps), *figures))
        late = "  beyond the SLO" if tpot_slo_ms is not None and point.ms > tpot_slo_ms else ""
        bars.append(f"  {'#' * round(_BAR * rate / best)}{late}")
    lines = map("".join, zip(aligned(_HEAD, cells, texts=0), bars, strict=True))
    fit = curve.fit
    formula = (
        f"t(b) = {fit.t0:.2f} + {fit.c:.3f} * b^{fit.alpha:.2f} ms, off by at most "
        f"{fit.worst_error:.0%} at {len(curve.points)} batches, {curve.steps} steps"
    )
    return "\n".join([*lines, formula])


def decision_text(
    decision: Decision, full: FullSlots, memory: MemoryBound | None, rate: RateSearch | None
) -> str:
    """Returns the decision, what it follows from, and how sure it is."""
    slots = decision.slots
    lines = [
        f"slots worth having: {slots}, limited by {decision.binds.value}",
        f"  all in use, with prompts: {full.tokens_per_s(slots):.0f} tokens/s, "
        f"{full.tpot_p95_ms(slots):.1f} ms per token (95th percentile)",
    ]
    lines += bounds(decision, memory, "not reported by the engine")
    tokens = decision.step_tokens
    lines.append(
        "max_num_batched_tokens: "
        + ("unknown, the engine has not measured its prefill" if tokens is None else str(tokens))
    )
    if rate is not None:
        lines += _rate_lines(rate)
    if decision.doubts:
        lines.append("how sure: NOT SURE")
        lines += [f"  {doubt}" for doubt in decision.doubts]
    else:
        lines.append("how sure: no doubt is known; the slots are good to a factor of two")
    return "\n".join(lines)


def _rate_lines(rate: RateSearch) -> list[str]:
    best, missed = rate.best, rate.missed
    if best is None:
        tried = f"{missed.rate_per_s:.3g}/s" if missed is not None else "none"
        return [f"largest rate that keeps the SLO: below {tried}, the lowest that was tried"]
    low, high = best.interval
    line = (
        f"largest rate that keeps the SLO: {best.rate_per_s:.3g}/s ({best.share:.0%} of "
        f"{best.requests} requests; {low:.0%} to {high:.0%} with 95 % confidence)"
    )
    if missed is None:
        return [line, "  no rate that was tried missed it: the largest may be higher"]
    return [line, f"  {missed.rate_per_s:.3g}/s does not ({missed.share:.0%})"]


def charts_of(curve: StepCurve, decision: Decision, tpot_slo_ms: float | None) -> list[Chart]:
    """Returns the time of a step, and the tokens per second, by batch."""
    slots, last = decision.slots, float(max(curve.largest, decision.slots))
    batches = [float(point.batch) for point in curve.points]
    off = f"The curve is off by at most {curve.fit.worst_error:.0%}."
    chosen = Style("", "s", 2, hollow=True)
    times = [
        Series("measured", batches, [point.ms for point in curve.points], Style("")),
        fitted("t0 + c b^alpha", curve.ms, 1.0, last),
    ]
    throughput = [
        Series("measured", batches, [point.tokens_per_s for point in curve.points], Style("")),
        fitted("fit", curve.tokens_per_s, 1.0, last),
        Series(f"{slots} slots", [float(slots)], [curve.tokens_per_s(slots)], chosen),
    ]
    slo = () if tpot_slo_ms is None else (Marked("SLO", tpot_slo_ms, True, horizontal=True),)
    label = "sequences per step"
    return [
        by_size("Decode step", off, label, "ms", times, linear=True, marked=slo),
        by_size("Throughput", off, label, "tokens/s", throughput, linear=False),
    ]

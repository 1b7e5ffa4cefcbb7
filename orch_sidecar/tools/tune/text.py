"""Formats what `orch tune` found for the terminal. Pure."""

from __future__ import annotations

from typing import Final

from orch_sidecar.tools.tune.decision import Decision
from orch_sidecar.tools.tune.full_slots import FullSlots
from orch_sidecar.tools.tune.memory import MemoryBound
from orch_sidecar.tools.tune.rate import RateBracket
from orch_sidecar.tools.tune.steps import StepCurve

_BAR: Final = 40


def curve_text(curve: StepCurve, tpot_slo_ms: float | None) -> str:
    """Returns a table of the measured batches with a bar of tokens/s for each."""
    best = max(1000 * point.batch / point.ms for point in curve.points)
    lines = ["batch   steps   ms/step    fit ms   tokens/s"]
    for point in curve.points:
        rate = 1000 * point.batch / point.ms
        late = "  beyond the SLO" if tpot_slo_ms is not None and point.ms > tpot_slo_ms else ""
        bar = "#" * round(_BAR * rate / best)
        lines.append(
            f"{point.batch:5d} {point.steps:7d} {point.ms:9.2f} {curve.ms(point.batch):9.2f} "
            f"{rate:10.1f}  {bar}{late}"
        )
    fit = curve.fit
    lines.append(
        f"t(b) = {fit.t0:.2f} + {fit.c:.3f} * b^{fit.alpha:.2f} ms, off by at most "
        f"{fit.worst_error:.0%} at {len(curve.points)} batches, {curve.steps} steps"
    )
    return "\n".join(lines)


def decision_text(
    decision: Decision, full: FullSlots, memory: MemoryBound | None, rate: RateBracket | None
) -> str:
    """Returns the decision, what it follows from, and how sure it is."""
    slots = decision.slots
    lines = [
        f"slots worth having: {slots}, limited by {decision.binds.value}",
        f"  all in use, with prompts: {full.tokens_per_s(slots):.0f} tokens/s, "
        f"{full.tpot_p95_ms(slots):.1f} ms per token (95th percentile)",
    ]
    if decision.by_slo is not None:
        lines.append(f"  the SLO allows {decision.by_slo}")
    memory_text = "not reported by the engine" if memory is None else memory.text
    lines.append(f"  memory: {memory_text}")
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


def _rate_lines(rate: RateBracket) -> list[str]:
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

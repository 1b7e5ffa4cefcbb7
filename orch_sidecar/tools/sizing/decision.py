"""Decides how many slots and which step size are worth having, and how sure that is.

Pure. The rules, in plain words:

- slots: the fewest that give nearly all of the tokens/s that any allowed number gives, with the
  prompts that are read meanwhile. Allowed is what keeps the SLO of the time per token while all
  slots are in use, and what the KV cache holds.
- `max_num_batched_tokens`: prompts share a step with decodes, and every stream waits for that
  step. The largest step that keeps the SLO of the time per token with all slots decoding, but no
  larger than where the fixed cost of a step no longer matters.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from orch_sidecar.tools.sizing.engine_model import (
    FURTHEST,
    EngineModel,
    FullSlots,
    MemoryBound,
    StepCurve,
)

# The share of the best tokens/s from which on more slots are not worth their latency.
NEARLY_ALL: Final = 0.95
# Slots below this share of what is allowed are limited by throughput, not by the bound.
FAR_BELOW: Final = 0.75
# The fixed cost of a step, as a share of the time of a step full of prompt tokens.
FIXED_COST: Final = 0.05
# vLLM's own multiples; the least that the shipped profiles allow.
STEP_TOKENS: Final = (256, 512, 1024, 2048, 4096, 8192, 16384)
MOST_SLOTS: Final = 1024
# Sizes that are compared, from one slot to the most: throughput has one peak, and no sharp one.
_STEPS_TO_MOST: Final = 16
# From these on the fit is called uncertain.
POOR_FIT: Final = 0.15
FEW_STEPS: Final = 64


class Binds(StrEnum):
    """What limits the number of slots."""

    SLO = "the SLO of the time per token"
    MEMORY = "the KV cache"
    THROUGHPUT = "throughput: more slots give hardly more tokens per second"
    MEASURED = "the largest batch that was measured"


@dataclass(frozen=True, slots=True)
class Decision:
    """`slots`: worth having. `by_slo`: the most that keep the SLO, None without an SLO.

    `binds`: what limits the slots. `step_tokens`: None where the engine has not measured its
    prefill. `doubts`: why this may be off; empty: none is known.
    """

    slots: int
    by_slo: int | None
    binds: Binds
    step_tokens: int | None
    doubts: tuple[str, ...]


def decide(
    model: EngineModel, full: FullSlots, tpot_slo_ms: float | None, slots_now: int
) -> Decision:
    """Decides from what is known of an engine, and from what it does with `full` slots.

    `tpot_slo_ms`: None without an SLO. `slots_now`: of the engine.
    """
    curve = model.curve
    reach = min(MOST_SLOTS, max(1, int(FURTHEST * curve.largest)))
    bounds = {Binds.MEASURED: reach}
    by_slo = None
    if tpot_slo_ms is not None:
        by_slo = largest_within(full, tpot_slo_ms, reach)
        bounds[Binds.SLO] = by_slo
    if model.memory is not None:
        bounds[Binds.MEMORY] = model.memory.sequences
    binds = min(bounds, key=lambda each: bounds[each])
    most = max(1, bounds[binds])
    slots = _fewest(full, most)
    if slots < FAR_BELOW * most:
        binds = Binds.THROUGHPUT
    tokens = None
    if model.prefill_tokens_per_s:
        tokens = _step_tokens(curve, slots, tpot_slo_ms, model.prefill_tokens_per_s)
    doubts = _doubts(curve, full, slots, by_slo, binds, slots_now)
    return Decision(slots, by_slo, binds, tokens, doubts)


def largest_within(full: FullSlots, tpot_slo_ms: float, most: int) -> int:
    """Returns the most slots that keep the SLO while all are in use; 0 if not even one does."""
    return bisect_right(range(1, most + 1), tpot_slo_ms, key=full.tpot_p95_ms)


def _fewest(full: FullSlots, most: int) -> int:
    """Returns the fewest slots, up to `most`, that give nearly all of the tokens/s of any."""
    sizes = sorted({round(most ** (at / _STEPS_TO_MOST)) for at in range(_STEPS_TO_MOST + 1)})
    best = max(sizes, key=full.tokens_per_s)
    enough = NEARLY_ALL * full.tokens_per_s(best)
    return 1 + bisect_left(range(1, best), enough, key=full.tokens_per_s)


def _step_tokens(
    curve: StepCurve, slots: int, tpot_slo_ms: float | None, prefill_tokens_per_s: float
) -> int:
    """Returns one of STEP_TOKENS, never fewer than there are slots."""
    per_ms = prefill_tokens_per_s / 1000
    enough = curve.t0 / FIXED_COST * per_ms
    most = enough
    if tpot_slo_ms is not None:
        most = min(enough, (tpot_slo_ms - curve.at(slots)) * per_ms + slots)
    fitting = [tokens for tokens in STEP_TOKENS if tokens <= most]
    chosen = fitting[-1] if fitting else STEP_TOKENS[0]
    return max(chosen, slots)


def bounds(decision: Decision, memory: MemoryBound | None, unknown: str) -> Iterator[str]:
    """Yields what SLO and memory allow. `unknown`: said of a memory of unknown size."""
    if decision.by_slo is not None:
        yield f"  the SLO of the time per token allows {decision.by_slo}"
    yield f"  memory: {unknown if memory is None else memory.text}"


def _doubts(
    curve: StepCurve,
    full: FullSlots,
    slots: int,
    by_slo: int | None,
    binds: Binds,
    slots_now: int,
) -> tuple[str, ...]:
    few = [point.batch for point in curve.points if point.steps < FEW_STEPS]
    known = {
        f"the curve is off by up to {curve.worst_error:.0%}: the machine is busy with something "
        "else, or the time depends on more than the batch": curve.worst_error > POOR_FIT,
        f"most batches had fewer than {FEW_STEPS} steps: raise --seconds for a surer curve": (
            len(few) * 2 > len(curve.points)
        ),
        f"{slots} slots are beyond the largest batch measured, {curve.largest}: the curve is "
        "extended there": slots > curve.largest,
        f"more may be worth having: the engine has {slots_now} slots; start it with "
        f"--max-num-seqs {2 * max(slots_now, slots)} and tune again": binds is Binds.MEASURED,
        "one slot does not batch: the written profile has 2; for one request at a time use the "
        "profile home": slots == 1,
        "no batch keeps the SLO: a token of one sequence takes "
        f"{full.tpot_p95_ms(1):.1f} ms": by_slo == 0,
    }
    return tuple(doubt for doubt, holds in known.items() if holds)

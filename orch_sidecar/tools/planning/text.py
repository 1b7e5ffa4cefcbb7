"""Formats a plan for the terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orch_sidecar.tools.drawing.texts import aligned, number_text, rounded
from orch_sidecar.tools.facts.cost.cost import per_million
from orch_sidecar.tools.planning.fleet import Prediction
from orch_sidecar.tools.tune.decision import Decision, bounds
from orch_sidecar.tools.tune.engine_model import MemoryBound

_HEAD = ("engines", "goodput", "per s", "refused", "TTFT p95", "TPOT p95 ms", "tokens/s", "busy")
# Reserved for the whole hour, however busy; the tokens are those of interactive requests that are
# served within the SLO, inputs included.
_MONEY = ("hour", "1M out in SLO")


def slots_text(decision: Decision, memory: MemoryBound | None, slots: int) -> str:
    """Returns the slots of each engine, and which bound they follow from."""
    limited = f", limited by {decision.binds.value}" if slots == decision.slots else ""
    unknown = "unknown; give --kv-tokens, or --kv-gib and --kv-bytes-per-token"
    lines = [f"slots of each engine: {slots}{limited}", *bounds(decision, memory, unknown)]
    return "\n".join(lines)


def plan_text(
    predictions: Sequence[Prediction], target: float, engine_hour: float | None = None
) -> str:
    """Returns the table, and the number of engines that reaches the target.

    `engine_hour`: what an hour of one engine costs; None: the table has no money.
    """
    head = _HEAD if engine_hour is None else (*_HEAD, *_MONEY)
    rows = [
        (
            str(each.engines),
            f"{each.goodput:.1%}",
            f"{each.goodput_per_s:.2f}",
            f"{each.refused:.1%}",
            rounded(each.ttft_p95_ms),
            rounded(each.tpot_p95_ms),
            f"{each.tokens_per_s:.0f}",
            f"{each.occupancy:.0%}",
            *([] if engine_hour is None else _money(each, engine_hour)),
        )
        for each in predictions
    ]
    lines = aligned(head, rows, texts=0)
    enough = needed(predictions, target)
    if enough is None:
        lines.append(
            f"not enough: {predictions[-1].engines} engines serve "
            f"{predictions[-1].goodput:.1%} within the SLO, {target:.0%} are wanted; raise --most"
        )
    else:
        word = "engine is" if enough == 1 else "engines are"
        lines.append(f"{enough} {word} enough for {target:.0%} within the SLO")
    return "\n".join(lines)


def needed(predictions: Sequence[Prediction], target: float) -> int | None:
    """Returns the fewest engines that reach the target; None if none of them does."""
    return next((each.engines for each in predictions if each.goodput >= target), None)


def _money(prediction: Prediction, engine_hour: float) -> tuple[str, str]:
    hour, good_per_s = prediction.engines * engine_hour, prediction.good_tokens_per_s
    return number_text(hour), number_text(per_million(hour, good_per_s) if good_per_s else None)

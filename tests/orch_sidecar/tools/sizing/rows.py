"""Rows of a table of facts that one engine could have made: t(b) = 8 + 0.2 b ms.

Curves of other engines, and their slots when all are in use.
"""

from __future__ import annotations

from math import inf

from orch_sidecar.tools.facts.tables.row import Label, Row, format_notes
from orch_sidecar.tools.simulate.engine import EngineShape
from orch_sidecar.tools.simulate.traffic import Workload
from orch_sidecar.tools.sizing.engine_model import FullSlots, StepCurve, curve_of

PREFILL = 20_000.0
INPUT, OUTPUT = 400, 100
BATCHES = (2, 4, 16, 64)


def step_ms(batch: int) -> float:
    return 8 + 0.2 * batch


def tpot_ms(batch: int) -> float:
    """A step, and the prompts that are computed between two steps in a closed loop."""
    return step_ms(batch) + 1000 * batch / OUTPUT * INPUT / PREFILL


def row(batch: int, gpu: str = "H100", **notes: float) -> Row:
    first_ms = 1000 * INPUT / PREFILL
    throughput = 1000 * batch / tpot_ms(batch)
    window_s = 700.0
    requests = round(throughput * window_s / OUTPUT)
    known: dict[str, str | int | float] = {
        "input_tokens": INPUT, "output_tokens": OUTPUT, "batching": "on",
        "arrivals": "closed_loop", "at_once": batch, "requests": requests, "window_s": window_s,
        "ttft_p50_ms": first_ms, "tpot_p50_ms": tpot_ms(batch),
        "batch_mean": float(batch), "batch_max": batch,
    }  # fmt: skip
    return Row(
        "org/model", "model", "vLLM 0.32.0", "BF16", gpu, 1, batch, INPUT, OUTPUT, throughput,
        Label.BATCHED_ONLINE, format_notes(known | notes), f"test:{gpu}-{batch}",
    )  # fmt: skip


def curve(t0: float, c: float, largest: int = 64) -> StepCurve:
    sizes = [2**power for power in range(largest.bit_length())]
    return curve_of([{b: (500, 0.5 * (t0 + c * b)) for b in sizes}])


def full(found: StepCurve, prefill: float = inf, prompt: float = 1.0) -> FullSlots:
    shape = EngineShape(
        t0_ms=found.t0, c_ms=found.c, alpha=found.alpha, prefill_tokens_per_s=prefill,
        step_tokens=2048, long_prefill_tokens=2048,
    )  # fmt: skip
    return FullSlots(shape, Workload(bulk_share=0.0, prompt=prompt, output=64.0, spread=0.0))

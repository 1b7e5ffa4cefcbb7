"""Facts with the names that models and accelerators really have, for tests of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from orch_sidecar.tools.facts.comparison.compare import Comparison
from orch_sidecar.tools.facts.tables.row import Label, Row
from tests.orch_sidecar.tools.facts.comparison import compared
from tests.orch_sidecar.tools.facts.rows import SETTINGS, fact

MODELS: Final = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen2.5-72B-Instruct-AWQ",
    "mistralai/Mixtral-8x22B-Instruct-v0.1",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
)
MACHINES: Final = (
    (4, "NVIDIA H100 80GB HBM3"),
    (8, "NVIDIA A100-SXM4-80GB"),
    (1, "NVIDIA L40S"),
    (0, "CPU (Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz)"),
)
_BATCHES: Final = ((4,), (2, 8), (2, 4, 8, 16, 32), (3,))


def measured(
    batches: Sequence[int],
    label: Label = Label.BATCHED_ONLINE,
    *,
    model: str = MODELS[0],
    machine: tuple[int, str] = MACHINES[0],
    fast: float = 92.0,
    **notes: Any,
) -> list[Row]:
    """Returns a row for each batch, with less than linear scaling."""
    found = []
    for batch in batches:
        alone = label is Label.SINGLE_STREAM
        own = {
            "arrivals": "one_by_one" if alone else "closed_loop",
            "batch_mean": 1.0 if alone else batch - 0.1,
            "batch_max": batch,
            "ttft_p50_ms": 20.0 + 3 * batch,
            "ttft_p95_ms": 35.0 + 9 * batch,
        }
        row = fact(
            label,
            model_id=model,
            gpu_count=machine[0],
            gpu=machine[1],
            batch=batch,
            throughput_tokens_per_sec=round(fast * batch**0.85, 2),
            source_tag=f"{label} {model} {machine} {batch} {fast} {notes}",
            notes=SETTINGS | own | notes,
        )
        found.append(row)
    return found


def sets(count: int) -> Comparison:
    """Returns a comparison of 1, 2, 4 or up to 16 sets."""
    curve = (2, 4, 8, 16, 32)
    found = measured(curve)
    if count == 2:
        found += measured((2, 4, 8, 16), fast=280.0, speculative="ngram:3")
    elif count == 4:
        found += measured((1,), Label.SINGLE_STREAM)
        found += measured((120,), Label.OFFLINE, arrivals="at_once")
        found += measured(curve, machine=MACHINES[1], fast=80.0)
    elif count > 4:
        found = [
            row
            for number in range(count)
            for row in measured(
                _BATCHES[(number + number // 4) % 4],
                model=MODELS[number // 4],
                machine=MACHINES[number % 4],
                fast=(92.0, 31.0, 55.0, 25.0)[number // 4] * (1, 0.8, 0.4, 0.03)[number % 4],
            )
        ]
    made = compared(*found)
    assert sum(len(each.ways) for each in made.sets) == count
    return made

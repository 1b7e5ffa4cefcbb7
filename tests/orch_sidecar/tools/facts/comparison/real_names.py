"""Facts with the names that models and accelerators really have, for tests of pictures."""

from __future__ import annotations

from itertools import islice, product

from orch_sidecar.tools.facts.comparison.compare import Comparison
from tests.orch_sidecar.tools.facts.comparison import compared
from tests.orch_sidecar.tools.facts.rows import SETTINGS, fact

_MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "Qwen/Qwen2.5-72B-Instruct-AWQ",
    "mistralai/Mixtral-8x22B-Instruct-v0.1",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
)
_MACHINES = (
    (4, "NVIDIA H100 80GB HBM3"),
    (8, "NVIDIA A100-SXM4-80GB"),
    (1, "NVIDIA L40S"),
    (0, "CPU (Intel(R) Xeon(R) Platinum 8480+ CPU @ 2.00GHz)"),
)
_BATCHES = ((2, 4, 8, 16, 32), (4,), (2, 8), (3,))


def sets(count: int) -> Comparison:
    """Returns a comparison of up to 16 sets, with curves and with single points."""
    rows = [
        fact(
            model_id=model,
            gpu_count=machine[0],
            gpu=machine[1],
            batch=batch,
            throughput_tokens_per_sec=round(92.0 / (number + 1) * batch**0.85, 2),
            source_tag=f"{number} {batch}",
            notes={**SETTINGS, "arrivals": "closed_loop", "ttft_p50_ms": 20.0 + 3 * batch},
        )
        for number, (model, machine) in enumerate(islice(product(_MODELS, _MACHINES), count))
        for batch in _BATCHES[(number + number // 4) % 4]
    ]
    made = compared(*rows)
    assert len(made.sets) == count
    return made

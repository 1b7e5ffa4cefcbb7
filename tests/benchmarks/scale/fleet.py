"""How many sidecars a fleet of GPUs needs, each on one core. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence

HEADROOM = 0.6
"""The share of its capacity that a core is planned with: above it, queues make latencies long."""


def sidecars(gpus: int, tokens_per_s_per_gpu: float, capacity_tokens_per_s: float) -> int:
    """`capacity_tokens_per_s`: of one core, measured."""
    offered = gpus * tokens_per_s_per_gpu
    return math.ceil(offered / (capacity_tokens_per_s * HEADROOM))


def rows(
    gpus: int, per_gpu: Sequence[float], capacities: dict[float, float]
) -> tuple[list[str], list[list[str]]]:
    """A table: a row per assumed tokens/s of a GPU, a column per pace (milliseconds per token)."""
    head = ["tokens/s per GPU", f"tokens/s of {gpus:,} GPUs"]
    head += [f"sidecars at {pace:g} ms per token" for pace in capacities]
    body = [
        [
            f"{each:,.0f}",
            f"{gpus * each:,.0f}",
            *(f"{sidecars(gpus, each, capacity):,}" for capacity in capacities.values()),
        ]
        for each in per_gpu
    ]
    return head, body

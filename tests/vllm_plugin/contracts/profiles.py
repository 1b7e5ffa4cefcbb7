"""Valid profiles as documents, and changes to them."""

from __future__ import annotations

from typing import Any

CLASS: dict[str, Any] = {
    "ttft_p95_ms": 1000.0,
    "tpot_p95_ms": None,
    "queue_capacity": 16,
    "max_wait_s": 30,
    "batch": {"least": 1, "most": 8},
}

ADMISSION: dict[str, Any] = {
    "full_queue": "reject",
    "aging_s": 10,
    "bulk_share": 0.1,
    "coalescing": False,
    "interactive": CLASS,
    "bulk": CLASS,
}

GOOD: dict[str, Any] = {
    "name": "mine",
    "measurement_type": "batched_online",
    "batching": True,
    "engine": {"max_num_seqs": {"default": 8, "minimum": 2}},
    "admission": ADMISSION,
}

SINGLE = {
    "measurement_type": "single_stream",
    "batching": False,
    "engine": {"max_num_seqs": {"fixed": 1}},
    "admission": ADMISSION,
}

OFFLINE = {
    "measurement_type": "offline",
    "admission": ADMISSION | {"interactive": None},
}


def admission(**change: Any) -> dict[str, Any]:
    """Returns a change of the profile's admission rules."""
    return {"admission": ADMISSION | change}


def bulk(**change: Any) -> dict[str, Any]:
    """Returns a change of the rules of bulk requests."""
    return admission(bulk=CLASS | change)


def slots(**rule: Any) -> dict[str, Any]:
    """Returns a change of the rule for the number of slots."""
    return {"engine": {"max_num_seqs": rule}}

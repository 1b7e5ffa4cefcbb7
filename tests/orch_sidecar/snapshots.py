"""Snapshots of pools without pools."""

from __future__ import annotations

from typing import Any

from orch_sidecar.pools.routing import PoolSnapshot
from vllm_plugin.contracts import profile
from vllm_plugin.contracts.profile import MeasurementType

CLOUD, HOME = profile.load("cloud"), profile.load("home")
BATCHED, SINGLE = MeasurementType.BATCHED_ONLINE, MeasurementType.SINGLE_STREAM


def snapshot(
    name: str,
    *,
    group: str | None = None,
    measurement_type: MeasurementType = BATCHED,
    slots_total: int = 8,
    room: int | None = None,
    **changes: Any,
) -> PoolSnapshot:
    """An idle pool with the model `m`; `room`: the slots that are free."""
    known: dict[str, Any] = {"models": {"m"}, "ctx_max": 2048}
    return PoolSnapshot(
        name,
        group=group or name,
        measurement_type=measurement_type,
        slots_total=slots_total,
        room=slots_total if room is None else room,
        **(known | changes),
    )

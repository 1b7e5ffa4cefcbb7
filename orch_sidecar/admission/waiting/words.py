"""What the next request of a queue waits for, in words. Pure."""

from __future__ import annotations

from orch_sidecar.admission.status import AdmissionStatus
from orch_sidecar.admission.types import BlockedBy


def waits_for(status: AdmissionStatus) -> str | None:
    """Completes "it waits for": what blocks the request that is next; None: nothing does."""
    if status.unavailable is not None:
        return f"the engine: {status.unavailable.message}"
    blocked_by = status.blocked_by
    if blocked_by is BlockedBy.SLOT and status.room > 0:
        return (
            f"more slots: {status.room} of {status.slots_total} are free, and it needs more, or "
            "other sidecars at this engine are next"
        )
    if blocked_by is None:
        return None
    return {
        BlockedBy.SLOT: f"a slot: {_all(status.slots_total)} in use",
        BlockedBy.BATCH: "a smaller batch: a larger one would break the SLO of the time per token",
        BlockedBy.RESERVE: "a slot of its own class: the free ones are reserved for interactive "
        "requests",
        BlockedBy.KV: "room in the KV cache: the running requests are expected to fill it",
        BlockedBy.PREFILL: "the engine to read the prompts that it has",
        BlockedBy.PAUSE: "a moment: the engine, or the sidecar below, rejected a request just now",
    }[blocked_by]


def _all(slots: int) -> str:
    return "the only one is" if slots == 1 else f"all {slots} are"

"""What the next request of a queue waits for, in words. Pure."""

from __future__ import annotations

from orch_sidecar.admission.status import AdmissionStatus


def waits_for(status: AdmissionStatus) -> str | None:
    """Completes "it waits for": what blocks the request that is next; None: nothing does."""
    if status.unavailable is not None:
        return f"the engine: {status.unavailable.message}"
    return None if status.blocked_by is None else status.blocked_by.text()

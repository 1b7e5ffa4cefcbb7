"""The engine's state and the ledger in, the sidecar's `/v1/capabilities` document out.

Pure. BATCHING/ORCH-3910 to 3912; the vocabulary is that of the plugin's document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orch_sidecar.admission.core import Admission

API_VERSION: Final = "1.0.0"

# What the plugin tells sidecars only, or tells in its own terms.
_NOT_PASSED_ON: Final = frozenset({"leases"})


def document(
    engine: Mapping[str, Any] | None,
    admission: Admission,
    *,
    state: str,
    class_name: str,
    age_ms: int | None,
    sidecar_version: str,
) -> dict[str, Any]:
    """The document. Without an engine that has ever reported, `engines` is empty."""
    ledger = admission.ledger
    entry: dict[str, Any] = {}
    if engine is not None:
        entry = {key: value for key, value in engine.items() if key not in _NOT_PASSED_ON}
        entry |= {
            "slots_free": max(0, ledger.room) if state == "ready" else 0,
            "leased": ledger.leased,
            "foreign": ledger.foreign,
            "queue": {class_name: admission.queue_depth},
            "oversubscription_violations_total": ledger.violations,
            "state": state,
            "age_ms": age_ms,
        }
    return {
        "api_version": API_VERSION,
        "sidecar_version": sidecar_version,
        "state": state,
        "engines": [entry] if entry else [],
    }

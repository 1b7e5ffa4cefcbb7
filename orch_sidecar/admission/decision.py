"""What became of requests: of each that waited, and counted.

Pure values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orch_sidecar.admission.ledger import Lease
from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.refusal import Refusal
from vllm_plugin.profile import ServiceClass


def _none() -> dict[ServiceClass, int]:
    return dict.fromkeys(ServiceClass, 0)


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a request that was waiting. Its id is the id of its lease."""

    request: str
    outcome: Lease | Refusal


@dataclass(slots=True)
class Statistics:
    """Counts since the start, by class."""

    granted: dict[ServiceClass, int] = field(default_factory=_none)
    refused: dict[ServiceClass, int] = field(default_factory=_none)

    def refuse(self, ask: AdmissionRequest, refusal: Refusal) -> Refusal:
        """Counts a refusal, and returns it."""
        self.refused[ask.service_class] += 1
        return refusal

"""A request in a queue. Pure: times are seconds of a monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass

from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.refusal import Reason


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A queued request.

    `expiry`: of the time limit that expires first. `delay_s`: the delay clock when it was
    first queued.
    `charge`: tokens that its key is charged in advance.
    """

    ticket: str
    request: AdmissionRequest
    arrived: float
    expires: float
    expiry: Reason
    delay_s: float
    charge: int = 1

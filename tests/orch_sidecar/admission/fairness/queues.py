"""Fair queues of requests with keys, for tests."""

from __future__ import annotations

from orch_sidecar.admission.fairness.fair_queue import FairQueue
from orch_sidecar.admission.fairness.queued_request import QueuedRequest
from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.refusal import Reason
from vllm_plugin.profile import ServiceClass


def request(key: str, weight: float = 1.0, cost: int = 1) -> AdmissionRequest:
    return AdmissionRequest(ServiceClass.BULK, cost, key=key.encode(), weight=weight)


def waiting(
    ticket: str, key: str, charge: int = 10, *, weight: float = 1.0, arrived: float = 0.0
) -> QueuedRequest:
    """A queued request of a key."""
    asked = request(key, weight)
    return QueuedRequest(ticket, asked, arrived, 60.0, Reason.QUEUE_TIMEOUT, 0.0, charge)


def queue_of(*queued: QueuedRequest) -> FairQueue:
    queue = FairQueue()
    for each in queued:
        queue.add(each)
    return queue


def order(queue: FairQueue) -> str:
    return " ".join(each.ticket for each in queue)


def dispatch(queue: FairQueue) -> QueuedRequest:
    head = queue.head()
    assert head is not None
    queue.remove(head)
    queue.dispatched(head.request, head.charge, at_once=False)
    return head


def dispatch_all(queue: FairQueue) -> str:
    return " ".join(dispatch(queue).ticket for _ in range(queue.size))

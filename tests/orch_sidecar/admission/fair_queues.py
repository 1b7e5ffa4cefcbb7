"""Fair queues of requests with keys, for tests."""

from __future__ import annotations

from orch_sidecar.admission.fair_queue import FairQueue
from orch_sidecar.admission.types import AdmissionRequest, Lease, QueuedRequest
from orch_sidecar.api.refusal import Reason
from vllm_plugin.contracts.profile import ServiceClass


def request(key: str, weight: float = 1.0, cost: int = 1) -> AdmissionRequest:
    return AdmissionRequest(ServiceClass.BULK, cost, key=key.encode(), weight=weight)


def waiting(
    ticket: str, key: str, tokens: int = 10, *, weight: float = 1.0, arrived: float = 0.0
) -> QueuedRequest:
    """A queued request of a key."""
    asked = request(key, weight)
    return QueuedRequest(ticket, asked, arrived, 60.0, Reason.QUEUE_TIMEOUT, 0.0, tokens)


def queue_of(*queued: QueuedRequest) -> FairQueue:
    queue = FairQueue()
    for each in queued:
        queue.add(each)
    return queue


def order(queue: FairQueue) -> str:
    return " ".join(each.ticket for each in queue)


def dispatch(queue: FairQueue) -> tuple[str, Lease]:
    """Dispatches the next request. Returns its ticket and its lease."""
    head = queue.head()
    assert head is not None
    queue.remove(head)
    lease = Lease(head.ticket, head.request.cost, "e1", head.request)
    queue.granted(lease, head)
    return head.ticket, lease


def at_once(queue: FairQueue, key: str) -> Lease:
    """A request of this key that is never queued."""
    asked = request(key)
    lease = Lease("at once", 1, "e1", asked)
    queue.granted_at_once(lease, asked)
    return lease


def settle(queue: FairQueue, lease: Lease, took: int) -> None:
    assert lease.request is not None
    queue.settle(lease, lease.request, took)


def dispatch_all(queue: FairQueue) -> str:
    return " ".join(dispatch(queue)[0] for _ in range(queue.size))

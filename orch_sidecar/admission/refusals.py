"""What is said to those who are not admitted. Pure."""

from __future__ import annotations

from typing import Final

from orch_sidecar.admission.draining import OrderedBy
from orch_sidecar.admission.queues import QueuedRequest
from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.profile import ClassRules

_DRAINED_BECAUSE: Final = {
    OrderedBy.SHUTDOWN: "this sidecar is shutting down",
    OrderedBy.OPERATOR: "an operator is draining this pool",
    OrderedBy.ENGINE_STOP: "the engine is being stopped; the next one to report is sent requests",
}


def draining(ordered_by: OrderedBy) -> Refusal:
    text = f"no new requests are taken here: {_DRAINED_BECAUSE[ordered_by]}"
    return Refusal(Reason.DRAINING, text, retry_after_ms=1000)


def shutting_down() -> Refusal:
    return draining(OrderedBy.SHUTDOWN)


def too_large(cost: int, slots_total: int) -> Refusal:
    return Refusal(
        Reason.COST_EXCEEDS_SLOTS,
        f"this request needs {cost} sequences at once (n times the number of prompts), "
        f"the engine has {slots_total} slots",
    )


def full(ask: AdmissionRequest, slots_total: int, capacity: int) -> Refusal:
    return Refusal(
        Reason.QUEUE_FULL,
        f"all {slots_total} slots are taken and the {ask.service_class} queue holds its "
        f"{capacity} requests",
    )


def dropped() -> Refusal:
    return Refusal(
        Reason.QUEUE_FULL_DROP_LRU,
        "the queue is full and this was the bulk request that had waited longest: it made room "
        "for a newer one",
    )


def may_not_queue() -> Refusal:
    return Refusal(Reason.DO_NOT_QUEUE, "no slot is free, and X-Orch-Do-Not-Queue is set")


def waits_too_long(
    ask: AdmissionRequest, rules: ClassRules, start_ms: float | None
) -> Refusal | None:
    """The refusal of a request that would wait longer than it may; None: it may wait."""
    own, most_ms = ask.max_wait_ms, 1000 * rules.max_wait_s
    if own is not None and (own <= 0 or (start_ms is not None and start_ms > own)):
        told = "it would have to wait" if start_ms is None else f"it would start in {start_ms} ms"
        return Refusal(Reason.QUEUE_TIMEOUT, f"{told}, X-Orch-Max-Wait-Ms is {own:g}")
    if start_ms is not None and start_ms > most_ms:
        return Refusal(
            Reason.QUEUE_TIMEOUT,
            f"it would start in {start_ms} ms, the longest wait of {ask.service_class} requests "
            f"is {rules.max_wait_s:g} s",
        )
    return None


def late(ask: AdmissionRequest, rules: ClassRules, first_token_ms: float) -> Refusal | None:
    """The refusal of a request whose first token would come too late; None: it would not."""
    expected = f"its first token would come in {round(first_token_ms)} ms"
    if ask.deadline_ms is not None and first_token_ms > ask.deadline_ms:
        return Refusal(
            Reason.DEADLINE_MISS, f"{expected}, X-Orch-Deadline-Ms is {ask.deadline_ms:g}"
        )
    slo_ms = rules.ttft_p95_ms
    if slo_ms is not None and first_token_ms > slo_ms:
        return Refusal(
            Reason.SLO_MISS,
            f"{expected}, the SLO of {ask.service_class} requests is {slo_ms:g} ms",
        )
    return None


def waited_too_long(waiting: QueuedRequest) -> Refusal:
    waited_s = waiting.expires - waiting.arrived
    promise = {
        Reason.DEADLINE_MISS: "its deadline cannot be met any more",
        Reason.SLO_MISS: f"the SLO of {waiting.ask.service_class} requests cannot be met any more",
    }.get(waiting.expiry, "longer it may not wait")
    return Refusal(waiting.expiry, f"no slot came free within {waited_s:.3g} s, and {promise}")

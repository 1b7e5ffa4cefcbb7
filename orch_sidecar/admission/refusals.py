"""The refusals of admission: each names the value, the rule and the remedy. Pure."""

from __future__ import annotations

from typing import Final

from orch_sidecar.admission.availability import OrderedBy
from orch_sidecar.admission.constraints.batch import SLO_MARGIN
from orch_sidecar.admission.types import AdmissionRequest, QueuedRequest
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.contracts.profile import ClassRules

_DRAIN_CAUSES: Final = {
    OrderedBy.SHUTDOWN: "this sidecar is shutting down",
    OrderedBy.OPERATOR: "an operator is draining this pool",
    OrderedBy.ENGINE_STOP: "its engine is being stopped, and requests resume with the next one",
}


STARTING: Final = Refusal(
    Reason.ENGINE_STARTING,
    "the engine has not reported its slots yet: retry when it has started",
)
RESTARTED: Final = Refusal(Reason.ENGINE_DOWN, "the engine was restarted: send it again")
LOST: Final = Refusal(
    Reason.INTERNAL_ERROR,
    "the sidecar lost this request's place in the queue, and its log states the cause: retry",
)


def draining(ordered_by: OrderedBy) -> Refusal:
    cause = _DRAIN_CAUSES[ordered_by]
    text = f"this pool accepts no new requests: {cause}; retry later or at another sidecar"
    return Refusal(Reason.DRAINING, text, retry_after_ms=1000)


def shutting_down() -> Refusal:
    return draining(OrderedBy.SHUTDOWN)


def too_large(cost: int, slots_total: int) -> Refusal:
    return Refusal(
        Reason.COST_EXCEEDS_SLOTS,
        f"the request asks for {cost} sequences at once (choices times prompts, or items of its "
        f"list), and this engine has {slots_total} slots: ask for at most {slots_total}",
    )


def full(request: AdmissionRequest, slots_total: int, capacity: int) -> Refusal:
    return Refusal(
        Reason.QUEUE_FULL,
        f"all {slots_total} slots are in use, and the {request.service_class} queue is full with "
        f"{capacity} requests: retry after the time in Retry-After",
    )


def evicted() -> Refusal:
    return Refusal(
        Reason.QUEUE_FULL_DROP_LRU,
        "the queue is full, and this bulk request, which had waited longest, was evicted for a "
        "newer one: retry after the time in Retry-After",
    )


def displaced(request: AdmissionRequest) -> Refusal:
    return Refusal(
        Reason.QUEUE_FULL,
        f"the {request.service_class} queue is full, this API key or flow has the most requests in "
        "it, and its last one left for a request of another: retry after the time in Retry-After",
    )


def may_not_queue() -> Refusal:
    return Refusal(
        Reason.DO_NOT_QUEUE,
        "no slot is free, and X-Orch-Do-Not-Queue forbids to queue the request: retry later or "
        "omit the header",
    )


def longest_wait(
    request: AdmissionRequest, rules: ClassRules, first_token_s: float = 0.0
) -> tuple[float, Reason]:
    """Returns the seconds for which a request may wait for its slots, and what it misses then.

    `first_token_s`: from its slots to its first token. Each time that a request gave its slots back
    it may wait as long again.
    """
    limits = [(rules.max_wait_s * (1 + request.reclaimed), Reason.QUEUE_TIMEOUT)]
    if request.max_wait_ms is not None:
        limits.append((request.max_wait_ms / 1000, Reason.QUEUE_TIMEOUT))
    if request.deadline_ms is not None:
        limits.append((request.deadline_ms / 1000, Reason.DEADLINE_MISS))
    if rules.ttft_p95_ms is not None:
        limits.append((max(0.0, rules.ttft_p95_ms / 1000 - first_token_s), Reason.SLO_MISS))
    return min(limits)


def too_long_a_wait(
    request: AdmissionRequest, rules: ClassRules, start_ms: int | None
) -> Refusal | None:
    """Returns the refusal of a request that would wait longer than it may; None: it may wait."""
    requested_ms, limit_ms = request.max_wait_ms, 1000 * rules.max_wait_s
    expected = "has to wait" if start_ms is None else f"would start in {start_ms} ms"
    if requested_ms is not None:
        late = start_ms is not None and start_ms > requested_ms
        if late or requested_ms <= 0:
            return Refusal(
                Reason.QUEUE_TIMEOUT,
                f"the request {expected}, and X-Orch-Max-Wait-Ms allows {requested_ms:.0f} ms: "
                "retry later or allow a longer wait",
            )
    if start_ms is not None and start_ms > limit_ms:
        return Refusal(
            Reason.QUEUE_TIMEOUT,
            f"the request {expected}, and {request.service_class} requests wait at most "
            f"{rules.max_wait_s:g} s: retry later",
        )
    return None


def late(
    request: AdmissionRequest,
    rules: ClassRules,
    first_token_s: float,
    again_s: float = 0.0,
    waited_s: float = 0.0,
) -> Refusal | None:
    """Returns the refusal of a request whose first token would be late; None: it is in time.

    `first_token_s`: from its arrival, `waited_s` ago. `again_s`: by how much it must be early for
    its SLO, because shorter prompts will arrive. Predictions err against a request that arrives,
    which can go elsewhere, and in favour of one that has waited.
    """
    first_token_ms = 1000 * first_token_s
    expected = f"the first token is expected in {round(first_token_ms)} ms"
    if waited_s:
        expected = (
            f"the first token is expected {round(first_token_ms)} ms after the arrival of the "
            f"request, {round(1000 * waited_s)} ms ago"
        )
    if request.deadline_ms is not None and first_token_ms > request.deadline_ms:
        return Refusal(
            Reason.DEADLINE_MISS,
            f"{expected}, and the request allows {request.deadline_ms:.0f} ms "
            "(X-Orch-Deadline-Ms or x-slo-ttft-ms): retry later or allow more time",
        )
    slo_ms = rules.ttft_p95_ms
    if slo_ms is None:
        return None
    slo = f"{expected}, and the SLO of {request.service_class} requests is {slo_ms:g} ms"
    if waited_s:
        missed = first_token_ms > slo_ms * (1 + SLO_MARGIN)
        return Refusal(Reason.SLO_MISS, f"{slo}: retry later") if missed else None
    if first_token_ms + 1000 * again_s > slo_ms * (1 - SLO_MARGIN):
        left, remedy = f"{slo_ms * SLO_MARGIN:.0f} ms are left for prediction errors", "retry later"
        if again_ms := round(1000 * again_s):
            left += f", and {again_ms} ms for the many shorter prompts that arrive"
            remedy += f", with a shorter prompt than of {request.prompt_tokens} tokens, or as bulk"
        return Refusal(Reason.SLO_MISS, f"{slo}, of which {left}: {remedy}")
    return None


def slow(token_ms: float, limit_ms: float) -> Refusal:
    return Refusal(
        Reason.DEADLINE_MISS,
        f"a token is expected every {token_ms:.3g} ms, and the request allows {limit_ms:g} ms "
        "(x-slo-tpot-ms): retry later or allow more time",
    )


def expired(queued: QueuedRequest) -> Refusal:
    """Returns the refusal of a queued request whose wait has expired."""
    waited_s = queued.expires_at - queued.arrived
    limit = {
        Reason.DEADLINE_MISS: "its deadline can no longer be met",
        Reason.SLO_MISS: f"the SLO of {queued.request.service_class} requests cannot be met any "
        "more",
    }.get(queued.expiry_reason, "that is the longest wait allowed")
    return Refusal(
        queued.expiry_reason, f"no slot came free within {waited_s:.3g} s, and {limit}: retry later"
    )

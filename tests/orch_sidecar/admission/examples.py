"""Rules, requests and engines for the tests of admission."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from orch_sidecar.admission.availability import Drain, OrderedBy
from orch_sidecar.admission.constraints.constraint import Constraint
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import (
    AdmissionRequest,
    Decision,
    EngineReport,
    Lease,
    Queued,
    StepTime,
)
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.contracts.kv_cache import KvCache, KvGroup
from vllm_plugin.contracts.profile import (
    AdmissionRules,
    BatchBounds,
    ClassRules,
    FullQueue,
    ServiceClass,
)

INTERACTIVE, BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK
STALE = Refusal(Reason.ENGINE_STALE, "no event for 3 s")
DRAIN = Drain(OrderedBy.OPERATOR, 0.0)

# A step of b sequences takes 10 + b milliseconds.
STEP_TIME = StepTime(t0_ms=10.0, c_ms=1.0, alpha=1.0, largest=64)


def class_rules(**changes: Any) -> ClassRules:
    """Rules that block nothing."""
    values: dict[str, Any] = {
        "ttft_p95_ms": None,
        "tpot_p95_ms": None,
        "queue_capacity": 16,
        "max_wait_s": 60.0,
        "batch": BatchBounds(least=1, most=1024),
    }
    return ClassRules(**values | changes)


def rules(
    interactive: ClassRules | None = None, bulk: ClassRules | None = None, **changes: Any
) -> AdmissionRules:
    """Rules of admission; those of a class that is not given block nothing."""
    values: dict[str, Any] = {
        "full_queue": FullQueue.REJECT,
        "aging_s": 10.0,
        "bulk_share": 0.0,
        "coalescing": False,
        "interactive": interactive or class_rules(),
        "bulk": bulk or class_rules(),
    }
    return AdmissionRules(**values | changes)


def bulk_only(bulk: ClassRules | None = None, **changes: Any) -> AdmissionRules:
    """Rules of an engine whose every request is bulk."""
    return rules(bulk=bulk, **changes).model_copy(update={"interactive": None})


def report(slots: int, epoch: str = "e1", **known: Any) -> EngineReport:
    return EngineReport(epoch, slots, **known)


def kv_of(tokens: int, block_tokens: int = 1) -> KvCache:
    """A KV cache of so many tokens, of which each layer takes all that a sequence has."""
    return KvCache(tokens // block_tokens, (KvGroup(block_tokens),))


def core_of(
    slots: int, of_rules: AdmissionRules | None = None, **known: Any
) -> AdmissionController:
    """An admission whose engine reported at 0 s. `known`: further fields of its report."""
    core = AdmissionController(of_rules or rules(), random.Random(1))
    assert core.engine_reports(report(slots, **known), 0.0) == []
    return core


def interactive(cost: int = 1, **asked: Any) -> AdmissionRequest:
    return AdmissionRequest(INTERACTIVE, cost, **asked)


def bulk(cost: int = 1, **asked: Any) -> AdmissionRequest:
    return AdmissionRequest(BULK, cost, **asked)


def granted(decisions: Iterable[Decision]) -> list[str]:
    """Which requests got a lease, in order."""
    return [each.ticket for each in decisions if isinstance(each.outcome, Lease)]


def refused(decisions: Iterable[Decision]) -> dict[str, Reason]:
    """Which requests were refused, and why."""
    return {each.ticket: reason_of(each.outcome) for each in decisions if is_refused(each)}


def ended(core: AdmissionController, leases: Iterable[str], now: float) -> list[Decision]:
    """The engine confirms that these leases have ended."""
    return [decision for lease in leases for decision in core.release(lease, now)]


def is_refused(decision: Decision) -> bool:
    return isinstance(decision.outcome, Refusal)


def reason_of(outcome: Lease | Refusal | Queued) -> Reason:
    assert isinstance(outcome, Refusal), outcome
    return outcome.reason


def reason(constraint: Constraint | None) -> str | None:
    """The name of what blocks a request."""
    return None if constraint is None else constraint.reason


def fill(
    core: AdmissionController, request: AdmissionRequest, *names: str, at: float = 0.0
) -> None:
    """Each of these gets a lease at once."""
    for name in names:
        assert isinstance(core.arrive(name, request, at), Lease), name


def queue(
    core: AdmissionController, request: AdmissionRequest, *names: str, at: float = 0.0
) -> list[Queued]:
    """Each of these has to wait."""
    found = []
    for name in names:
        outcome = core.arrive(name, request, at)
        assert isinstance(outcome, Queued), (name, outcome)
        found.append(outcome)
    return found

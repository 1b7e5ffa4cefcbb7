"""What must be true of an admission, kept beside it without looking into it.

But for the measured demand, and what bulk requests are owed: these have tests of their own, and
are read from the core's reserve.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orch_sidecar.admission.constraints.batch import Limits, limits_for
from orch_sidecar.admission.constraints.reserve import InteractiveReserve
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease
from orch_sidecar.api.refusal import Reason, Refusal
from tests.orch_sidecar.admission.examples import BULK, INTERACTIVE
from vllm_plugin.contracts.profile import AdmissionRules, FullQueue, ServiceClass


@dataclass
class Waits:
    """A queued request."""

    request: AdmissionRequest
    since: float
    expires_at: float
    expiry_reason: Reason


@dataclass
class Model:
    """An engine, the requests in it, and those queued for it."""

    rules: AdmissionRules
    reserve: InteractiveReserve
    now: float = 100.0
    engine: EngineReport = field(default_factory=lambda: EngineReport("", 0))
    unavailable: Refusal | None = None
    draining: bool = False
    paused_until: float = 0.0
    unread: bool = False  # bulk prompts that the engine may still have to read
    requests: dict[str, tuple[AdmissionRequest, float]] = field(
        default_factory=dict
    )  # and when it first came
    out: dict[str, AdmissionRequest | None] = field(default_factory=dict)  # None: not one of ours
    closing: set[str] = field(default_factory=set)
    queues: dict[ServiceClass, dict[str, Waits]] = field(
        default_factory=lambda: {each: {} for each in ServiceClass}
    )
    outcome: dict[str, Lease | Refusal] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    below: dict[str, tuple[AdmissionRequest, float]] = field(
        default_factory=dict
    )  # refused there, not yet back
    limits: Limits = field(default_factory=lambda: Limits(0, 0, 0, False))

    # State

    @property
    def depth(self) -> int:
        return sum(len(queue) for queue in self.queues.values())

    @property
    def waiting(self) -> dict[str, Waits]:
        return self.queues[INTERACTIVE] | self.queues[BULK]

    @property
    def taken(self) -> int:
        return (
            sum(1 if request is None else request.cost for request in self.out.values())
            + self.foreign
        )

    @property
    def foreign(self) -> int:
        return self.engine.foreign

    def leased(self, service_class: ServiceClass) -> int:
        requests = [request for request in self.out.values() if request is not None]
        return sum(request.cost for request in requests if request.service_class is service_class)

    def head(self, service_class: ServiceClass) -> str | None:
        return next(iter(self.queues[service_class]), None)

    def places(self, service_class: ServiceClass) -> int:
        """Free places in a queue."""
        of, queues = self.rules.of, self.queues
        places = of(service_class).queue_capacity - len(queues[service_class])
        if service_class is BULK and self.rules.full_queue is FullQueue.DROP_LRU:
            displacing = len(queues[INTERACTIVE]) - of(INTERACTIVE).queue_capacity
            places -= max(0, displacing)
        return places

    # The reserve

    def lendable(self) -> int:
        """What bulk and foreign sequences may have."""
        return self.reserve.lendable(self.now)

    def due(self) -> bool:
        """Whether the first bulk request goes before interactive ones."""
        head = self.reserve._queues.head(BULK)
        return head is not None and self.reserve.is_due(head, self.now)

    def pass_time(self, passed_s: float) -> None:
        self.now += passed_s

    def measure(self, before: EngineReport) -> None:
        """The engine reported; limits are held steady while slots and rules stay."""
        engine = self.engine
        same = engine.slots_total == before.slots_total
        if (before.step_time, before.batch_seen) != (engine.step_time, engine.batch_seen) or (
            not same
        ):
            self.limits = self._limits(self.limits if same else None)

    def replace_rules(self, rules: AdmissionRules) -> None:
        self.rules = rules
        self.limits = self._limits(None)

    def _limits(self, before: Limits | None) -> Limits:
        engine = self.engine
        return limits_for(
            self.rules, engine.slots_total, engine.step_time, engine.batch_seen, before=before
        )

    # Constraints

    def is_blocked(self, request: AdmissionRequest, blocked_by: str, *, due: bool = False) -> bool:
        """Whether it is true that a request waits for that."""
        limits, mine, cost = self.limits, self.leased(INTERACTIVE), request.cost
        slots, taken, is_bulk = self.engine.slots_total, self.taken, request.service_class is BULK
        blocked_for_others = is_bulk and bool(taken) and not due
        traffic = self.reserve.has_traffic(self.now)
        match blocked_by:
            case "slot":
                return taken + cost > slots
            case "pause":
                return self.now < self.paused_until
            case "kv":
                return bool(taken) and self.engine.kv is not None
            case "prefill":
                return blocked_for_others and traffic and self.unread
            case "reserve":
                return blocked_for_others and taken - mine + cost > self.lendable()
            case "batch" if is_bulk:
                small = blocked_for_others and traffic and taken + cost > limits.mixed
                return small or (taken > 0 and taken + cost > limits.bulk)
            case _:
                assert blocked_by == "batch"
                return mine > 0 and mine + cost > limits.interactive

    def check_grant(self, ticket: str, request: AdmissionRequest) -> None:
        """It is dispatched: it fits, and it overtakes no other of its class."""
        assert self.unavailable is None, "nothing is admitted on a guess"
        assert self.now >= self.paused_until
        assert not self.is_blocked(request, "slot"), "never over"
        assert self.head(request.service_class) in (None, ticket), "first come, first served"
        if request.service_class is INTERACTIVE:
            assert not self.is_blocked(request, "batch")
        elif self.taken:
            assert self.taken + request.cost <= self.limits.bulk

    # Events

    def limits_of(self, request: AdmissionRequest, since: float) -> tuple[float, Reason]:
        """When the first of its time limits ends, and which that is; but for the SLO."""
        longest_s = self.rules.of(request.service_class).max_wait_s * (1 + request.reclaimed)
        limits = [(since + longest_s, Reason.QUEUE_TIMEOUT)]
        if request.max_wait_ms is not None:
            limits.append((since + request.max_wait_ms / 1000, Reason.QUEUE_TIMEOUT))
        if request.deadline_ms is not None:
            limits.append((since + request.deadline_ms / 1000, Reason.DEADLINE_MISS))
        return min(limits)

    def enqueue(self, ticket: str) -> None:
        request, since = self.requests[ticket]
        limits = self.limits_of(request, since)
        self.queues[request.service_class][ticket] = Waits(request, since, *limits)

    def requeue(self, ticket: str) -> None:
        """It was served, and refused below: it goes before all that came later."""
        request = self.requests[ticket][0]
        queue = self.queues[request.service_class]
        self.enqueue(ticket)
        by_arrival = sorted(queue.items(), key=lambda item: (item[1].since, item[0] != ticket))
        self.queues[request.service_class] = dict(by_arrival)

    def settle(self, ticket: str, outcome: Lease | Refusal) -> None:
        """It goes, or is refused."""
        request = self.requests[ticket][0]
        assert ticket not in self.outcome, "a request ends exactly once"
        assert ticket not in self.left, "nothing is decided about a request that went away"
        if isinstance(outcome, Lease):
            assert outcome == Lease(ticket, request.cost, self.engine.epoch)
            assert (outcome.request, outcome.granted_at) == (request, self.now)
            self.check_grant(ticket, request)
            self.out[ticket] = request
            self.unread = self.unread or (
                request.service_class is BULK and request.prompt_tokens > 0
            )
        self.queues[request.service_class].pop(ticket, None)
        self.outcome[ticket] = outcome

    def end(self, lease: str) -> None:
        """No request has this lease now."""
        request = self.out[lease]
        if request is not None and request.service_class is BULK:
            self.unread = self.unread and self.engine.prefill_tokens_per_s is not None
        del self.out[lease]
        self.closing.discard(lease)

"""What must be true of an admission, kept beside it without looking into it.

What cannot be known from outside to the moment (when a claim on the reserve runs out) is kept as
bounds, and held against the core only where both agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orch_sidecar.admission.constraints.batch import Limits, limits_for
from orch_sidecar.admission.constraints.reserve import CLAIM_S, SPARE_SHARE
from orch_sidecar.admission.types import AdmissionRequest, BlockedBy, EngineReport, Lease
from orch_sidecar.api.refusal import Reason, Refusal
from tests.orch_sidecar.admission.examples import BULK, INTERACTIVE
from vllm_plugin.profile import AdmissionRules, FullQueue, ServiceClass

_ROUNDING_S = 1e-6


@dataclass
class Waits:
    """A queued request; `delay_s` what the bounds of the delay showed when it came."""

    request: AdmissionRequest
    since: float
    expires: float
    expiry: Reason
    delay_s: tuple[float, float]


@dataclass
class Model:
    """An engine, the requests in it, and those queued for it."""

    rules: AdmissionRules
    now: float = 100.0
    engine: EngineReport = field(default_factory=lambda: EngineReport("", 0))
    unavailable: Refusal | None = None
    draining: bool = False
    paused_until: float = 0.0
    window_until: float = 0.0
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
    delay_s: tuple[float, float] = (0.0, 0.0)
    share: tuple[float, float] = (0.0, 0.0)
    claimed_at: float = float("-inf")  # when there was interactive traffic last

    # State

    @property
    def depth(self) -> int:
        return sum(len(queue) for queue in self.queues.values())

    @property
    def waiting(self) -> dict[str, Waits]:
        return self.queues[INTERACTIVE] | self.queues[BULK]

    @property
    def limits(self) -> Limits:
        return limits_for(self.rules, self.engine.slots_total, self.engine.step_time)

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

    # Claims and delays

    @property
    def traffic(self) -> tuple[bool, bool]:
        """Whether there surely is, and may be, interactive traffic: for 10 s after the last."""
        if self.leased(INTERACTIVE):
            return True, True
        age_s = self.now - self.claimed_at
        return age_s < CLAIM_S - _ROUNDING_S, age_s < CLAIM_S + _ROUNDING_S

    @property
    def reserved(self) -> int:
        return int(self.rules.reserved_share * self.engine.slots_total)

    def lendable(self, traffic: bool) -> int:
        """What bulk and foreign sequences may have: but for the reserve in use, and a spare."""
        slots, reserved = self.engine.slots_total, self.reserved
        if not reserved or not traffic:
            return slots
        queued = sum(waits.request.cost for waits in self.queues[INTERACTIVE].values())
        spare = max(1, int(SPARE_SHARE * reserved))
        return slots - min(reserved, self.leased(INTERACTIVE) + queued + spare)

    def _share_at(self, traffic: bool) -> float:
        """What interactive traffic takes of what bulk could have, by slots."""
        limits, mine, slots = self.limits, self.leased(INTERACTIVE), self.engine.slots_total
        most = limits.mixed if traffic else limits.bulk
        left = min(most, self.lendable(traffic) + mine, slots) - self.foreign - mine
        first = next(iter(self.queues[BULK].values()))
        alone = min(limits.mixed, slots - self.foreign) - self.reserved
        if traffic and first.request.cost > max(left, alone):
            return 1.0
        return min(1.0, max(0.0, 1 - max(0, left) / max(1, alone)))

    def turn(self, *, surely: bool) -> None:
        """The share changed (surely, or it may have)."""
        possible = [self._share_at(each) for each in self.traffic] if self.queues[BULK] else [0.0]
        low, high = min(possible), max(possible)
        if not surely:
            low, high = min(low, self.share[0]), max(high, self.share[1])
        self.share = (low, high)

    def pass_time(self, passed_s: float) -> None:
        self.now += passed_s
        low, high = self.delay_s
        self.delay_s = (low + passed_s * self.share[0], high + passed_s * self.share[1])

    def may_have_claimed(self, request: AdmissionRequest) -> tuple[bool, bool]:
        """Whether it surely is, and may be, too large for what is beside the claimed reserve."""
        surely, maybe = self.traffic
        return request.cost > self.lendable(surely), request.cost > self.lendable(maybe)

    def aged(self, ticket: str | None) -> tuple[bool, bool]:
        """Whether interactive traffic has surely, and may have, delayed it by the bound."""
        if ticket is None:
            return False, False
        waits, bound_s = self.queues[BULK][ticket], self.rules.aging_s
        least, most = (now - then for now, then in zip(self.delay_s, waits.delay_s, strict=True))
        return least >= bound_s + _ROUNDING_S, most >= bound_s - _ROUNDING_S

    # Constraints

    def is_blocked(
        self, request: AdmissionRequest, blocked_by: BlockedBy, *, surely_aged: bool = False
    ) -> bool:
        """Whether it is true that a request waits for that."""
        limits, mine, cost = self.limits, self.leased(INTERACTIVE), request.cost
        slots, taken, is_bulk = self.engine.slots_total, self.taken, request.service_class is BULK
        blocked_for_others = is_bulk and bool(taken) and not surely_aged
        traffic = self.traffic[1]
        match blocked_by:
            case BlockedBy.SLOT:
                return taken + cost > slots
            case BlockedBy.PAUSE:
                return self.now < self.paused_until
            case BlockedBy.WINDOW:
                return is_bulk and not taken and self.now < self.window_until
            case BlockedBy.KV:
                return bool(taken) and self.engine.kv is not None
            case BlockedBy.PREFILL:
                return blocked_for_others and traffic and self.unread
            case BlockedBy.RESERVE:
                too_large = surely_aged and self.may_have_claimed(request)[0]
                beyond = taken - mine + cost > self.lendable(traffic)
                return is_bulk and taken > 0 and beyond and not too_large
            case BlockedBy.BATCH if is_bulk:
                small = blocked_for_others and traffic and taken + cost > limits.mixed
                return small or (taken > 0 and taken + cost > limits.bulk)
            case BlockedBy.BATCH:
                return mine > 0 and mine + cost > limits.interactive

    def check_grant(self, ticket: str, request: AdmissionRequest) -> None:
        """It is dispatched: it fits, and it overtakes no other."""
        heads = {each: self.head(each) for each in ServiceClass}
        assert self.unavailable is None, "nothing is admitted on a guess"
        assert self.now >= self.paused_until
        assert not self.is_blocked(request, BlockedBy.SLOT), "never over"
        assert heads[request.service_class] in (None, ticket), "first come, first served"
        surely, maybe = self.aged(heads[BULK])
        if request.service_class is INTERACTIVE:
            assert not self.is_blocked(request, BlockedBy.BATCH)
            first = next(iter(self.queues[BULK].values()), None)
            if surely and first is not None:
                held = self.is_blocked(first.request, BlockedBy.RESERVE, surely_aged=True)
                assert held, "no other overtakes an aged one"
            return
        maybe = maybe and heads[BULK] == ticket
        first = next(iter(self.queues[INTERACTIVE].values()), None)
        if first is not None and not maybe:
            assert self.is_blocked(first.request, BlockedBy.BATCH), "interactive before bulk"
        if self.taken:
            assert self.taken + request.cost <= self.limits.bulk
            mine = self.leased(INTERACTIVE)
            fits = self.taken - mine + request.cost <= self.lendable(self.traffic[0])
            assert fits or (maybe and self.may_have_claimed(request)[1]), (
                "the reserve is not its own"
            )
            assert maybe or not mine or self.taken + request.cost <= self.limits.mixed

    # Events

    def limits_of(self, request: AdmissionRequest, since: float) -> tuple[float, Reason]:
        """When the first of its time limits ends, and which that is; but for the SLO."""
        limits = [(since + self.rules.of(request.service_class).max_wait_s, Reason.QUEUE_TIMEOUT)]
        if request.max_wait_ms is not None:
            limits.append((since + request.max_wait_ms / 1000, Reason.QUEUE_TIMEOUT))
        if request.deadline_ms is not None:
            limits.append((since + request.deadline_ms / 1000, Reason.DEADLINE_MISS))
        return min(limits)

    def enqueue(self, ticket: str) -> None:
        request, since = self.requests[ticket]
        limits = self.limits_of(request, since)
        self.queues[request.service_class][ticket] = Waits(request, since, *limits, self.delay_s)

    def requeue(self, ticket: str) -> None:
        """It was served, and refused below: it goes before all that came later."""
        request = self.requests[ticket][0]
        queue = self.queues[request.service_class]
        self.enqueue(ticket)
        first = queue[self.head(request.service_class) or ticket].delay_s
        low, high = self.delay_s
        queue[ticket].delay_s = (min(low, first[0]), min(high, first[1]))
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
        """Nothing carries this lease any more."""
        request = self.out[lease]
        if request is not None and request.service_class is INTERACTIVE:
            self.claimed_at = self.now
        elif request is not None and self.engine.prefill_tokens_per_s is None:
            self.unread = False
        del self.out[lease]
        self.closing.discard(lease)

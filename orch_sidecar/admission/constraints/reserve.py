"""Decides which slots belong to interactive requests, and what bulk requests are guaranteed.

Pure: times are seconds of a monotonic clock. With a demand of D slots (see `demand`) the reserve
is D + sqrt(D): what interactive requests ask for on average, and its standard deviation. Bulk
requests start while they leave that many slots. Two accounts bound what it costs:

- slots that stay free for it while bulk requests wait may cost a small share of the tokens: the
  more they have cost, the less of sqrt(D) stays free, and in the end only what interactive
  requests use and wait for is theirs;
- bulk requests that wait are guaranteed `bulk_share` of the slots' time over ACCOUNT_S: when
  they have had less, the first of them is next, whatever the reserve. And an operator may bound
  the time by which interactive traffic delays one of them.
"""

from __future__ import annotations

from math import sqrt
from typing import ClassVar, Final

from orch_sidecar.admission.constraints.batch import Limits
from orch_sidecar.admission.constraints.constraint import (
    POLL_S,
    UNLIMITED,
    Beside,
    Constraint,
    Scope,
)
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.demand import Demand
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, QueuedRequest, StepTime
from orch_sidecar.api.refusal import Reason
from vllm_plugin.contracts.profile import BULK, IDLE, INTERACTIVE, AdmissionRules, ServiceClass

# For how long bulk's share is guaranteed; the share of the tokens that idle slots may cost, and for
# how long that is saved, so that bursts may cost more for a while.
ACCOUNT_S: Final = 60.0
IDLE_SHARE: Final = 0.03
IDLE_SAVED_S: Final = 30.0

# For how long a slot that is lent to a bulk request is gone: as measured, within these bounds.
LENT_BOUNDS_S: Final[tuple[float, float]] = (1.0, 60.0)

# A hundred responses a second are as informative as all of them.
LEARN_EVERY_S: Final = 0.01


class DelayClock:
    """Accumulates by how much interactive traffic has delayed bulk requests, in seconds.

    It runs while bulk requests wait, at the share of their slots that interactive traffic takes
    from them (the reserve is not theirs): where it takes a quarter, they are delayed by a second
    in four. So it shows how much longer a bulk request has waited than it would have alone,
    whatever else blocks it; one whose delay reaches the bound goes next.
    """

    def __init__(self) -> None:
        self.delay_s = 0.0
        self._at = 0.0
        self._share = 0.0

    def set_share(self, share: float, now: float) -> None:
        """From now on interactive traffic takes `share` (0 to 1) of the slots of bulk requests."""
        self.delay_s += max(0.0, now - self._at) * self._share
        self._at, self._share = now, share

    def value(self, now: float) -> float:
        """The accumulated delay."""
        return self.delay_s + max(0.0, now - self._at) * self._share

    def reaches_at(self, delay_s: float) -> float | None:
        """When the delay will be `delay_s` if the share stays; None: never."""
        missing = delay_s - self.delay_s
        if missing <= 0:
            return self._at
        return self._at + missing / self._share if self._share else None


class BulkGuarantee:
    """What bulk requests that wait have had less than their share, in slot-seconds.

    Earned while bulk requests wait, spent by all that run. While no interactive request contends,
    nothing is: a debt from then would keep bulk requests out when that changes.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.owed = 0.0
        self._ledger = ledger
        self._earning = 0.0  # slots: now, while bulk requests wait
        self.used = 0.0  # the ledger's sum, when it was last looked at
        self._at = 0.0

    def update(self, share: float, waiting: bool, contended: bool, now: float) -> None:
        """To be called before what changes these. `contended`: interactive requests have, or
        claim, some of the slots."""
        earned = self._earning * max(0.0, now - self._at)
        used_in_all = self._ledger.bulk_slot_s(now)
        used, self.used, self._at = used_in_all - self.used, used_in_all, now
        used = max(0.0, used)  # the sum begins anew with each start of the engine
        slots = share * self._ledger.slots_total
        self._earning = slots if waiting and contended else 0.0
        most = slots * ACCOUNT_S
        self.owed = min(most, max(-most / 2, self.owed + earned - used))
        if not contended:
            self.owed = 0.0

    def reaches_at(self, owed: float) -> float | None:
        """When that much will be owed if nothing changes; None: not before something does."""
        rate = self._earning - self._ledger.bulk
        return None if rate <= 0 else self._at + (owed - self.owed) / rate


class IdleAccount:
    """The tokens that reserved slots may cost while bulk requests wait for them.

    In seconds of the engine's whole throughput: a share of it is saved, what is idle is spent.
    """

    def __init__(self) -> None:
        self._saved = self._most = IDLE_SHARE * IDLE_SAVED_S
        self._spending = 0.0
        self._at = 0.0

    @property
    def left(self) -> float:
        """From 1 (nothing was spent of late) to 0 and below (more than may be)."""
        return self._saved / self._most

    @property
    def is_full(self) -> bool:
        """Nothing more is saved."""
        return self._saved == self._most

    def update(self, spending: float, now: float) -> None:
        """From now on idle slots cost `spending` of the tokens (0 to 1)."""
        saved = self._saved + (IDLE_SHARE - self._spending) * max(0.0, now - self._at)
        self._saved = min(self._most, saved)
        self._spending, self._at = spending, now


class InteractiveReserve(Constraint):
    """The slots of interactive requests, and the claims of bulk requests on all of them."""

    reason: ClassVar[str] = "reserve"
    scope: ClassVar[Scope] = Scope.CLASS
    classes: ClassVar[tuple[ServiceClass, ...]] = (BULK, IDLE)
    of_free_slots: ClassVar[bool] = True

    def __init__(self, rules: AdmissionRules, ledger: Ledger, queues: Queues) -> None:
        self.rules = rules
        self.clock = DelayClock()
        self.guarantee = BulkGuarantee(ledger)
        self.demands = self.interactive, self.bulk, self.idle = Demand(), Demand(), Demand()
        self.refused_beside_bulk = 0  # interactive requests, while bulk had more than its share
        self.step_time: StepTime | None = None
        self.sidecars = 1  # at this engine: each guarantees its part of bulk's share
        self.others_claim = False  # other sidecars claim slots, maybe for interactive requests
        self._idle = IdleAccount()
        self._at_rest = False  # nothing accumulates, unless bulk requests come
        self._most = 0  # slots that interactive requests can use
        self._ledger = ledger
        self._queues = queues

    @property
    def _bulk_share(self) -> float:
        return self.rules.bulk_share / self.sidecars

    # Demand

    def resized(self, slots_total: int, interactive: int) -> None:
        """The engine has so many slots, of which interactive requests can use `interactive`."""
        for demand in self.demands:
            demand.slots_total = slots_total
        self._most = min(slots_total, interactive)

    def demand(self, service_class: ServiceClass) -> Demand:
        return self.demands[service_class.rank]

    def reported(self, report: EngineReport, now: float) -> None:
        for demand in self.demands:
            demand.fold()

    def completed(self, request: AdmissionRequest, elapsed_s: float, now: float) -> None:
        """A request had its slots for that long."""
        pace = self.demands[request.service_class.rank].pace
        if now < pace.learns_at:
            return
        pace.learns_at = now + LEARN_EVERY_S
        pace.completed(request.work / request.cost, elapsed_s)
        if request.service_class is BULK:
            lent_s = min(LENT_BOUNDS_S[1], max(LENT_BOUNDS_S[0], pace.service_s))
            self.interactive.lent_s = self.bulk.lent_s = lent_s

    def refused(self, request: AdmissionRequest, reason: Reason) -> bool:
        """A request was refused. Returns whether that was for a limit of its own, not of
        the engine; it then does not count as demand."""
        if self._has_stricter_limit(request, reason):
            return True
        share = self._bulk_share * self._ledger.slots_total
        if request.service_class is INTERACTIVE and self._ledger.bulk > share:
            self.refused_beside_bulk += 1
        return False

    def expired(self, queued: QueuedRequest, now: float) -> None:
        """A request was refused after it had waited."""
        request = queued.request
        if self.refused(request, queued.expiry):
            demand = self.demand(request.service_class)
            demand.withdrawn(request, now - queued.arrived, now)

    def ratio(self, limits: Limits, now: float) -> float:
        """What is asked for over what can be served within the SLOs: 1 is full."""
        total = 0.0
        for service_class in (INTERACTIVE, BULK):  # no engine is added for idle requests
            running = self._ledger.of(service_class) + self._queues.cost(service_class)
            asked = self.demand(service_class).update(now)
            most = limits.bulk if service_class is BULK else limits.interactive
            total += max(asked, running) / max(1, most)
        return total

    def _has_stricter_limit(self, request: AdmissionRequest, reason: Reason) -> bool:
        """Whether a request was refused for a limit of its own that its class does not have, or
        only a wider one."""
        if reason is Reason.DO_NOT_QUEUE:
            return True
        rules, own_ms, class_ms = self.rules.of(request.service_class), None, None
        if reason is Reason.DEADLINE_MISS:
            if request.tpot_ms is not None:
                return True
            own_ms, class_ms = request.deadline_ms, rules.ttft_p95_ms
        elif reason is Reason.QUEUE_TIMEOUT:
            own_ms, class_ms = request.max_wait_ms, 1000 * rules.max_wait_s
        return own_ms is not None and (class_ms is None or own_ms < class_ms)

    # Slots

    def reserved(self, now: float) -> int:
        """Slots of interactive requests: no more than sqrt(D) beyond those that they use and wait
        for, and the fewer, the more these have cost of late."""
        demand = self.interactive.update(now)
        deviation = sqrt(demand)
        spare = max(0.0, self._idle.left) * deviation
        return min(self._most, int(min(demand + deviation, self._claimed() + spare) + 0.5))

    def has_traffic(self, now: float) -> bool:
        """Whether there are interactive requests, or will be soon."""
        ledger = self._ledger
        return ledger.interactive + ledger.foreign_interactive > 0 or self.reserved(now) > 0

    def lendable(self, now: float) -> int:
        """Slots that bulk requests and foreign sequences may have together."""
        return self._ledger.slots_total - self.reserved(now)

    def room(self, service_class: ServiceClass, beside: Beside, now: float) -> int:
        if beside.due or service_class is INTERACTIVE:
            return UNLIMITED
        return self.lendable(now) - (beside.taken_for(service_class) - beside.interactive)

    def blocks(self, request: AdmissionRequest, beside: Beside, now: float) -> bool:
        if beside.due:
            return False
        taken = beside.taken_for(request.service_class)
        return request.cost > self.lendable(now) - (taken - beside.interactive)

    def guaranteed(self, service_class: ServiceClass) -> int:
        if service_class is not BULK:
            return 0
        return max(1, round(self._bulk_share * self._ledger.slots_total))

    def clears_at(self, request: AdmissionRequest, now: float) -> float | None:
        return now + POLL_S

    def text(self) -> str:
        return "a slot of its own class: the free ones are reserved for interactive requests"

    def kept_free(self, now: float) -> int:
        """Free slots that bulk requests wait for, and that are kept for interactive ones."""
        head, ledger = self._queues.head(BULK), self._ledger
        if head is None or self.is_due(head, now):
            return 0
        lent = ledger.firm - ledger.interactive
        if lent + head.request.cost <= self.lendable(now):
            return 0
        return max(0, ledger.slots_total - ledger.firm)

    # Bulk requests

    def is_due(self, bulk: QueuedRequest, now: float) -> bool:
        """Whether the head of bulk requests goes before interactive ones: it is owed slots, or one
        of all that wait, which may be behind those of other keys, was delayed for as long as it
        may be."""
        owed, running = self.guarantee.owed, self._ledger.bulk
        if owed > 0 and owed >= self._claim(bulk.request.cost, running):
            return True
        return self._is_delayed(self._queues.longest_delay(), now)

    def would_be_due(self, request: AdmissionRequest, now: float) -> bool:
        """Whether a running bulk request would go before interactive ones if it waited again."""
        owed, others = self.guarantee.owed, self._ledger.bulk - request.cost
        if owed > 0 and owed >= self._claim(request.cost, others):
            return True
        return self._is_delayed(request.delay_s, now)

    def due_at(self, bulk: QueuedRequest, now: float) -> float | None:
        """When the head of bulk requests will be due, if nothing changes; None: unpredictable."""
        if self.is_due(bulk, now):
            return None
        times, since_s = [], self._queues.longest_delay()
        if self._is_contended(now):
            claim = self._claim(bulk.request.cost, self._ledger.bulk)
            times.append(self.guarantee.reaches_at(claim))
        if self.rules.aging_s is not None and since_s is not None:
            times.append(self.clock.reaches_at(since_s + self.rules.aging_s))
        return min((at for at in times if at is not None), default=None)

    def update(self, now: float) -> None:
        """To be called after each change while requests are queued."""
        waiting, ledger = self._queues.size(BULK) > 0, self._ledger
        if self._at_rest and not waiting and ledger.bulk_slot_s(now) == self.guarantee.used:
            return
        contended = self._is_contended(now)
        self.guarantee.update(self._bulk_share, waiting, contended, now)
        head = self._queues.head(BULK)
        self._at_rest = False
        if head is None or not contended:
            self.clock.set_share(0.0, now)
            self._idle.update(0.0, now)
            self._at_rest = not waiting and not self.guarantee.owed and self._idle.is_full
            return
        slots = max(1, ledger.slots_total - ledger.foreign)
        theirs = max(ledger.interactive, ledger.slots_total - self.lendable(now))
        # A request larger than what is left would wait for ever.
        too_large = head.request.cost > slots - theirs and theirs > 0
        self.clock.set_share(1.0 if too_large else min(1.0, theirs / slots), now)
        self._idle.update(self._cost(self.kept_free(now)), now)

    def _claim(self, cost: int, running: int) -> float:
        """What must be owed for a request of `cost` to be next, in slot-seconds: half of what it
        will take, so that bulk requests have neither more nor less than their share on average;
        and what those that are `running` are still to take."""
        most = self._bulk_share * self._ledger.slots_total * ACCOUNT_S
        return min((cost + running) * self.bulk.lent_s, most) / 2

    def _is_delayed(self, since_s: float | None, now: float) -> bool:
        """Whether a bulk request was delayed for as long as it may be. `since_s`: the delay clock
        when it was queued first."""
        aging_s = self.rules.aging_s
        if aging_s is None or since_s is None:
            return False
        return self.clock.value(now) >= since_s + aging_s

    def _is_contended(self, now: float) -> bool:
        return self.others_claim or self._queues.size(INTERACTIVE) > 0 or self.has_traffic(now)

    def _claimed(self) -> int:
        return self._ledger.interactive + self._queues.cost(INTERACTIVE)

    def _cost(self, idle: int) -> float:
        """The share of the tokens that `idle` more sequences would generate."""
        batch = self._ledger.leased + self._ledger.foreign
        if not idle:
            return 0.0
        with_them = batch + idle
        step = self.step_time
        slower = 1.0 if step is None or not batch else step.ms(with_them) / step.ms(batch)
        return max(0.0, 1 - slower * batch / with_them)

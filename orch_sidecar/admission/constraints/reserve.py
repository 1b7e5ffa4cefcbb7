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

from collections.abc import Iterable
from math import sqrt
from typing import ClassVar, Final

from orch_sidecar.admission.constraints.batch import Limits
from orch_sidecar.admission.constraints.constraint import (
    POLL_S,
    UNLIMITED,
    Constraint,
    Occupancy,
    Scope,
)
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.demand import Demand
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import (
    AdmissionRequest,
    EndedLease,
    EngineReport,
    QueuedRequest,
    StepTime,
)
from orch_sidecar.api.refusal import Reason
from vllm_plugin.contracts.profile import BULK, IDLE, INTERACTIVE, AdmissionRules, ServiceClass

# The period over which bulk's share is guaranteed; the share of the tokens that unused slots may
# cost, and for how long that is saved up, so that a burst may cost more for a while.
ACCOUNT_S: Final = 60.0
UNUSED_SHARE: Final = 0.03
UNUSED_SAVED_S: Final = 30.0

# Bounds of the measured time for which a slot that is lent to a bulk request is gone.
LENT_BOUNDS_S: Final[tuple[float, float]] = (1.0, 60.0)

# A hundred responses a second teach as much as all of them.
LEARN_EVERY_S: Final = 0.01


class DelayClock:
    """A clock that shows by how many seconds interactive traffic has delayed bulk requests.

    It runs while bulk requests wait, at the share of their slots that interactive traffic takes
    from them (the reserve is not theirs): where it takes a quarter, they lose one second in four.
    So it shows how much longer a bulk request has waited than it would have alone, whatever else
    blocks it; one whose delay reaches the bound goes next.
    """

    def __init__(self) -> None:
        self.delay_s = 0.0
        self._updated_at = 0.0
        self._share = 0.0

    def set_share(self, share: float, now: float) -> None:
        """Sets the share (0 to 1) of bulk requests' slots that interactive traffic takes now."""
        self.delay_s += max(0.0, now - self._updated_at) * self._share
        self._updated_at, self._share = now, share

    def value(self, now: float) -> float:
        """Returns the accumulated delay."""
        return self.delay_s + max(0.0, now - self._updated_at) * self._share

    def reaches_at(self, delay_s: float) -> float | None:
        """Returns when the delay will be `delay_s` if the share stays; None: never."""
        missing = delay_s - self.delay_s
        if missing <= 0:
            return self._updated_at
        return self._updated_at + missing / self._share if self._share else None


class BulkGuarantee:
    """The slot-seconds by which bulk requests have had less than their share: `owed`.

    It grows while bulk requests wait, and shrinks with all that run. Without interactive requests
    nothing counts: a debt from then would keep bulk requests out when some come.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.owed = 0.0
        self._ledger = ledger
        self._earning = 0.0  # slots: now, while bulk requests wait
        self.used = 0.0  # the ledger's sum, when it was last looked at
        self._updated_at = 0.0

    def update(self, share: float, waiting: bool, contended: bool, now: float) -> None:
        """Brings `owed` up to date; call it before these arguments change. `contended`:
        interactive requests have or claim some of the slots."""
        earned = self._earning * max(0.0, now - self._updated_at)
        used_in_all = self._ledger.bulk_slot_s(now)
        used, self.used, self._updated_at = used_in_all - self.used, used_in_all, now
        used = max(0.0, used)  # the sum begins anew with each start of the engine
        slots = share * self._ledger.slots_total
        self._earning = slots if waiting and contended else 0.0
        most = slots * ACCOUNT_S
        self.owed = min(most, max(-most / 2, self.owed + earned - used))
        if not contended:
            self.owed = 0.0

    def reaches_at(self, owed: float) -> float | None:
        """Returns when `owed` will be reached if nothing changes; None: not before that."""
        rate = self._earning - self._ledger.bulk
        return None if rate <= 0 else self._updated_at + (owed - self.owed) / rate


class UnusedSlotsAccount:
    """The tokens that reserved but unused slots may cost while bulk requests wait for them.

    Counted in seconds of the engine's whole throughput: a share of it is saved, and unused slots
    spend it.
    """

    def __init__(self) -> None:
        self._saved = self._most = UNUSED_SHARE * UNUSED_SAVED_S
        self._spending = 0.0
        self._updated_at = 0.0

    @property
    def left_share(self) -> float:
        """From 1 (nothing was spent recently) to 0 and below (more than allowed)."""
        return self._saved / self._most

    @property
    def is_full(self) -> bool:
        """Whether nothing more can be saved."""
        return self._saved == self._most

    def update(self, spending: float, now: float) -> None:
        """Sets the share (0 to 1) of the tokens that unused slots cost from now on."""
        saved = self._saved + (UNUSED_SHARE - self._spending) * max(0.0, now - self._updated_at)
        self._saved = min(self._most, saved)
        self._spending, self._updated_at = spending, now


class InteractiveReserve(Constraint):
    """Keeps slots for interactive requests, and knows what bulk requests are owed."""

    reason: ClassVar[str] = "reserve"
    scope: ClassVar[Scope] = Scope.CLASS
    classes: ClassVar[tuple[ServiceClass, ...]] = (BULK, IDLE)
    divides_free_slots: ClassVar[bool] = True

    def __init__(self, rules: AdmissionRules, ledger: Ledger, queues: Queues) -> None:
        self.rules = rules
        self.clock = DelayClock()
        self.guarantee = BulkGuarantee(ledger)
        self.demands = self.interactive, self.bulk, self.idle = Demand(), Demand(), Demand()
        self.refused_beside_bulk = 0  # interactive requests, while bulk had more than its share
        self.step_time: StepTime | None = None
        self.sidecars = 1  # at this engine: each guarantees its part of bulk's share
        self.others_claim = False  # other sidecars claim slots, maybe for interactive requests
        self._unused = UnusedSlotsAccount()
        self._at_rest = False  # nothing accumulates, unless bulk requests come
        self._usable = 0  # slots that interactive requests can use
        self._ledger = ledger
        self._queues = queues

    @property
    def _bulk_share(self) -> float:
        return self.rules.bulk_share / self.sidecars

    def reloaded(self, rules: AdmissionRules) -> None:
        self.rules = rules

    # Demand

    def resized(self, slots_total: int, interactive: int) -> None:
        """The engine has `slots_total` slots, of which interactive requests can use
        `interactive`."""
        for demand in self.demands:
            demand.slots_total = slots_total
        self._usable = min(slots_total, interactive)

    def demand(self, service_class: ServiceClass) -> Demand:
        return self.demands[service_class.rank]

    def reported(self, report: EngineReport, now: float) -> None:
        for demand in self.demands:
            demand.count_arrivals()

    def learn(self, ended: Iterable[EndedLease]) -> None:
        """Learns from those that completed for how long requests have their slots."""
        for lease, output_tokens, _, now in ended:
            request = lease.request
            if request is None or output_tokens is None:
                continue
            pace = self.demands[request.service_class.rank].pace
            if now < pace.learns_at:
                continue
            pace.learns_at = now + LEARN_EVERY_S
            pace.completed(request.work / request.cost, now - lease.granted_at)
            if request.service_class is BULK:
                lent_s = min(LENT_BOUNDS_S[1], max(LENT_BOUNDS_S[0], pace.service_s))
                self.interactive.lent_s = self.bulk.lent_s = lent_s

    def refused(self, request: AdmissionRequest, reason: Reason) -> bool:
        """A request was refused. Returns whether a limit of its own was the cause: then it does
        not count as demand."""
        if self._has_stricter_limit(request, reason):
            return True
        share = self._bulk_share * self._ledger.slots_total
        if request.service_class is INTERACTIVE and self._ledger.bulk > share:
            self.refused_beside_bulk += 1
        return False

    def expired(self, queued: QueuedRequest, now: float) -> None:
        """A request was refused after it had waited."""
        request = queued.request
        if self.refused(request, queued.expiry_reason):
            demand = self.demand(request.service_class)
            demand.withdrawn(request, now - queued.arrived, now)

    def demand_ratio(self, limits: Limits, now: float) -> float:
        """Returns the demand as a multiple of what can be served within the SLOs: 1 is full."""
        total = 0.0
        for service_class in (INTERACTIVE, BULK):  # no engine is added for idle requests
            running = self._ledger.of(service_class) + self._queues.cost(service_class)
            asked = self.demand(service_class).update(now)
            most = limits.bulk if service_class is BULK else limits.interactive
            total += max(asked, running) / max(1, most)
        return total

    def _has_stricter_limit(self, request: AdmissionRequest, reason: Reason) -> bool:
        """Whether a request was refused for a limit of its own that is stricter than its
        class's."""
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

    def reserved(self, now: float, service_class: ServiceClass = BULK) -> int:
        """Returns the slots of interactive requests, as requests of a class see them: at most
        sqrt(D) more than they use and wait for, and fewer the more these have cost recently."""
        interactive = self.interactive
        demand = interactive.expect(now) if service_class is IDLE else interactive.update(now)
        deviation = sqrt(demand)
        spare = max(0.0, self._unused.left_share) * deviation
        own = self._ledger.interactive + self._queues.cost(INTERACTIVE)
        return min(self._usable, int(min(demand + deviation, own + spare) + 0.5))

    def has_traffic(self, now: float, service_class: ServiceClass = BULK) -> bool:
        """Whether there are interactive requests, or will be soon, as requests of a class see
        it."""
        ledger = self._ledger
        if ledger.interactive + ledger.foreign_interactive > 0:
            return True
        return self.reserved(now, service_class) > 0

    def lendable(self, now: float, service_class: ServiceClass = BULK) -> int:
        """Returns the slots that requests of a class and foreign sequences may have together."""
        return self._ledger.slots_total - self.reserved(now, service_class)

    def room(self, service_class: ServiceClass, occupancy: Occupancy, now: float) -> int:
        if occupancy.due or service_class is INTERACTIVE:
            return UNLIMITED
        taken = occupancy.taken_for(service_class)
        return self.lendable(now, service_class) - (taken - occupancy.interactive)

    def blocks(self, request: AdmissionRequest, occupancy: Occupancy, now: float) -> bool:
        if occupancy.due:
            return False
        service_class = request.service_class
        taken = occupancy.taken_for(service_class)
        return request.cost > self.lendable(now, service_class) - (taken - occupancy.interactive)

    def guaranteed(self, service_class: ServiceClass) -> int:
        if service_class is not BULK:
            return 0
        return max(1, round(self._bulk_share * self._ledger.slots_total))

    def clears_at(self, request: AdmissionRequest, now: float) -> float | None:
        return now + POLL_S

    def text(self) -> str:
        return "a slot of its own class: the free ones are reserved for interactive requests"

    def kept_free(self, now: float) -> int:
        """Returns the free slots that are kept for interactive requests while bulk ones wait."""
        head, ledger = self._queues.head(BULK), self._ledger
        if head is None or self.is_due(head, now):
            return 0
        lent = ledger.non_idle - ledger.interactive
        if lent + head.request.cost <= self.lendable(now):
            return 0
        return max(0, ledger.slots_total - ledger.non_idle)

    # Bulk requests

    def is_due(self, bulk: QueuedRequest, now: float) -> bool:
        """Whether the head of bulk requests goes before interactive ones: it is owed slots, or any
        waiting bulk request, perhaps behind those of other keys, has been delayed too long."""
        owed, running = self.guarantee.owed, self._ledger.bulk
        if owed > 0 and owed >= self._debt_to_start(bulk.request.cost, running):
            return True
        return self._is_delayed(self._queues.first_bulk_delay_s(), now)

    def would_be_due(self, request: AdmissionRequest, now: float) -> bool:
        """Whether a running bulk request would go before interactive ones if it waited again."""
        owed, others = self.guarantee.owed, self._ledger.bulk - request.cost
        if owed > 0 and owed >= self._debt_to_start(request.cost, others):
            return True
        return self._is_delayed(request.delay_s, now)

    def due_at(self, bulk: QueuedRequest, now: float) -> float | None:
        """Returns when the head of bulk requests will be due if nothing changes; None: unknown."""
        if self.is_due(bulk, now):
            return None
        times, since_s = [], self._queues.first_bulk_delay_s()
        if self._is_contended(now):
            debt = self._debt_to_start(bulk.request.cost, self._ledger.bulk)
            times.append(self.guarantee.reaches_at(debt))
        if self.rules.aging_s is not None and since_s is not None:
            times.append(self.clock.reaches_at(since_s + self.rules.aging_s))
        return min((at for at in times if at is not None), default=None)

    def update(self, now: float) -> None:
        """Brings clock and accounts up to date, after each change while requests are queued."""
        waiting, ledger = self._queues.size(BULK) > 0, self._ledger
        if self._at_rest and not waiting and ledger.bulk_slot_s(now) == self.guarantee.used:
            return
        contended = self._is_contended(now)
        self.guarantee.update(self._bulk_share, waiting, contended, now)
        head = self._queues.head(BULK)
        self._at_rest = False
        if head is None or not contended:
            self.clock.set_share(0.0, now)
            self._unused.update(0.0, now)
            self._at_rest = not waiting and not self.guarantee.owed and self._unused.is_full
            return
        slots = max(1, ledger.slots_total - ledger.foreign)
        theirs = max(ledger.interactive, ledger.slots_total - self.lendable(now))
        # A request larger than the rest of the slots would wait for ever.
        too_large = head.request.cost > slots - theirs and theirs > 0
        self.clock.set_share(1.0 if too_large else min(1.0, theirs / slots), now)
        self._unused.update(self._unused_cost(self.kept_free(now)), now)

    def _debt_to_start(self, cost: int, running: int) -> float:
        """Returns the slot-seconds that must be owed for a request of `cost` to be next: half of
        what it and those that are `running` will take, so that bulk requests have neither more nor
        less than their share on average."""
        most = self._bulk_share * self._ledger.slots_total * ACCOUNT_S
        return min((cost + running) * self.bulk.lent_s, most) / 2

    def _is_delayed(self, since_s: float | None, now: float) -> bool:
        """Whether a bulk request has been delayed for as long as it may be. `since_s`: what the
        delay clock showed when it was first queued."""
        aging_s = self.rules.aging_s
        if aging_s is None or since_s is None:
            return False
        return self.clock.value(now) >= since_s + aging_s

    def _is_contended(self, now: float) -> bool:
        return self.others_claim or self._queues.size(INTERACTIVE) > 0 or self.has_traffic(now)

    def _unused_cost(self, unused: int) -> float:
        """Returns the share of the tokens that sequences in `unused` slots would generate."""
        batch = self._ledger.leased + self._ledger.foreign
        if not unused:
            return 0.0
        with_them = batch + unused
        step = self.step_time
        slower = 1.0 if step is None or not batch else step.ms(with_them) / step.ms(batch)
        return max(0.0, 1 - slower * batch / with_them)

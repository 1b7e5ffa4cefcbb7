"""Lists the constraints of one engine in the order of their evaluation, and combines them.

Pure: times are seconds of a monotonic clock. A bulk request that is due (it is owed slots, or has
been delayed for as long as it may be) is blocked neither by the reserve, nor by the interactive SLO
of the batch, nor by prefill.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from orch_sidecar.admission.constraints.adapter import Adapters
from orch_sidecar.admission.constraints.batch import BatchLimit, Limits, limits_for
from orch_sidecar.admission.constraints.constraint import (
    UNLIMITED,
    Ahead,
    Constraint,
    Occupancy,
    Scope,
)
from orch_sidecar.admission.constraints.idle import IdleRoom
from orch_sidecar.admission.constraints.kv_cache import KvBudget
from orch_sidecar.admission.constraints.prefill import PrefillLimit
from orch_sidecar.admission.constraints.reserve import InteractiveReserve
from orch_sidecar.admission.constraints.slot_offers import Pause, SlotOffers, Slots
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, StepTime
from vllm_plugin.contracts.lease_protocol import MAX_CLAIMED_SHARE
from vllm_plugin.contracts.profile import BULK, IDLE, INTERACTIVE, AdmissionRules, ServiceClass


class AdmissionConstraints:
    """The constraints of one engine, and what they look at: its leases (`ledger`), its queues, and
    how long requests take."""

    def __init__(
        self,
        rules: AdmissionRules,
        ledger: Ledger,
        queues: Queues,
        service_times: ServiceTimes,
        more: Iterable[Constraint] = (),
    ) -> None:
        """`more`: further constraints, evaluated before all others but the pause."""
        self.rules = rules
        self.offers = SlotOffers(ledger)
        self.pause = Pause(self.offers)
        self.reserve = InteractiveReserve(rules, ledger, queues)
        traffic = self.reserve.has_traffic
        self.batch = BatchLimit(limits_for(rules, 0, None), ledger, self.offers, traffic)
        self._prefill = PrefillLimit(rules, ledger, queues, service_times, self.batch, traffic)
        self.kv = KvBudget(ledger, service_times)
        self.slots = Slots(ledger)
        self.idle = IdleRoom(ledger, queues, service_times, self.reserve, self.offers)
        self.all: tuple[Constraint, ...] = (
            self.pause,
            *more,
            Adapters(ledger, queues, service_times),
            self.slots,
            self.batch,
            self.reserve,
            self._prefill,
            self.idle,
            self.kv,
            self.offers,
        )
        (self._hearing_reports,) = _overriding("reported", (self.all,))
        self._select_active()
        for each in self.all:
            each.on_switch = self._select_active
        # Slots, the largest batch seen and the step time from which the limits were computed.
        self._measured: tuple[int, int, StepTime | None] = (0, 0, None)
        self._current_occupancy = Occupancy()  # reused: each request needs one
        self.ledger = ledger
        self.queues = queues
        self.service_times = service_times

    def _select_active(self) -> None:
        """Leaves out the constraints that are inactive, after one has begun or ceased to be."""
        # By the rank of a class: the constraints that limit it; then only those that override one
        # method.
        active = tuple(each for each in self.all if not each.inactive)
        self._of_class = tuple(
            tuple(each for each in active if one in each.classes) for one in ServiceClass
        )
        self._absolute = tuple(
            tuple(each for each in of_class if each.absolute) for of_class in self._of_class
        )
        # Beside idle ones alone others lack only what these give back: slots, and their blocks.
        self._beside_idle = tuple(
            tuple(each for each in of_class if each.absolute or each is self.kv or one is IDLE)
            for one, of_class in zip(ServiceClass, self._of_class, strict=True)
        )
        self._limiting_room = _overriding("room", self._of_class)
        # Those that say how long they block a request; those that block some and let others pass,
        # and of these those that do not say so.
        self._foreseeing = _overriding("starts_in_s", self._of_class)
        self._by_request = tuple(each for each in active if each.scope is Scope.REQUEST)
        self._unforeseen = set(self._by_request).difference(*self._foreseeing)
        self.granting = _overriding("granted", self._of_class)
        self.ending = _overriding("ended", self._of_class)

    @property
    def reasons(self) -> list[str]:
        """The names of all constraints."""
        return list(dict.fromkeys(each.reason for each in self.all))

    # Events

    def begin_epoch(self) -> None:
        """The engine restarted."""
        for each in self.all:
            each.begin_epoch()
        self.service_times.begin_epoch()

    def reported(self, report: EngineReport, now: float) -> None:
        """The engine reported its state; the ledger has its slots."""
        for each in self._hearing_reports:
            each.reported(report, now)
        self.reserve.sidecars, self.reserve.others_claim = (
            self.offers.sidecars,
            self.offers.contended,
        )
        measured = (self.ledger.slots_total, report.batch_seen, report.step_time)
        if measured == self._measured:
            return
        if report.step_time is not self._measured[2]:
            tpot_ms = self.rules.of(INTERACTIVE).tpot_p95_ms
            self._prefill.budget.measured(report.step_time, tpot_ms, self.ledger.leased)
        before = self.batch.limits if measured[0] == self._measured[0] else None
        self._measured = measured
        fit = report.step_time
        self.reserve.step_time = fit if fit is not None and fit.good else None
        self._set_limits(before)

    def replace_rules(self, rules: AdmissionRules) -> None:
        """Applies reloaded rules."""
        self.rules = rules
        for each in self.all:
            each.reloaded(rules)
        self._set_limits(None)

    def _set_limits(self, before: Limits | None) -> None:
        slots_total, batch_seen, step_time = self._measured
        bulk_prompts = self._prefill.budget.bulk_prompts
        self.batch.limits = limits_for(
            self.rules, slots_total, step_time, batch_seen, bulk_prompts, before
        )
        self.reserve.resized(slots_total, self.batch.limits.interactive)

    # Decisions

    def blocking(
        self, request: AdmissionRequest, now: float, *, due: bool = False
    ) -> Constraint | None:
        """Returns the first constraint that blocks a request now; None: it can be dispatched.

        Its `kv` has to be set. `due`: it is a bulk request that goes before interactive ones.
        """
        ledger, occupancy = self.ledger, self._current_occupancy
        occupancy.idle = idle = ledger.idle
        occupancy.taken = taken = ledger.leased + ledger.foreign - idle
        occupancy.interactive, occupancy.due = ledger.interactive, due
        of_class = self._of_class if taken else self._beside_idle if idle else self._absolute
        for each in of_class[request.service_class.rank]:
            if each.blocks(request, occupancy, now):
                return each
        return None

    def obstacle(
        self, request: AdmissionRequest, now: float, *, due: bool = False
    ) -> Constraint | None:
        """Returns the constraint that would still block a request if the slots that it waits for
        came free, so that they would be booked for it in vain. None: there is none."""
        ledger = self.ledger
        taken, others = ledger.non_idle, ledger.slots_total - request.cost
        freed = max(0, taken - others)
        occupancy = Occupancy(taken - freed, min(ledger.interactive, others), freed, due=due)
        of_class = self._of_class[request.service_class.rank]
        for each in of_class if occupancy.taken else ():
            if not each.absolute and each.blocks(request, occupancy, now):
                return each
        return None

    def starts_behind(self, ahead: Ahead, request: AdmissionRequest, now: float) -> float | None:
        """Returns for how many seconds a queued request will at least be blocked by something other
        than slots; None: unknown. Counts it as ahead of those that are asked for next."""
        blocked_s: float | None = 0.0
        for each in self._foreseeing[request.service_class.rank]:
            each_s = each.starts_in_s(request, ahead, now)
            if each_s is None and each.scope is not Scope.REQUEST:
                ahead.held_s = inf  # nobody knows for how long
            if each_s is None or blocked_s is None:
                blocked_s = None
            elif each_s > 0:
                blocked_s = max(blocked_s, each_s)
                if each.scope is not Scope.REQUEST and each_s > ahead.held_s:
                    ahead.held_s = each_s
        for each in self._by_request:
            if not each.is_used_by(request):
                continue
            key = each, each.group(request)
            ahead.needing[key] = ahead.needing.get(key, 0) + request.cost
            if each in self._unforeseen and each.blocks(request, self._occupancy(), now):
                at = each.clears_at(request, now)
                blocked_s = None if at is None or blocked_s is None else max(blocked_s, at - now)
        ahead.sequences += request.cost
        ahead.prompt_tokens += request.cost * request.prompt_tokens
        ahead.output_tokens += request.work
        if blocked_s is None or ahead.held_s == inf:
            return None
        return max(blocked_s, ahead.held_s)

    def room_to_claim(self, request: AdmissionRequest, now: float, *, due: bool) -> int:
        """Returns the slots that the head of a queue, which lacks some, and those behind it could
        take: at most twice those of the engine. So a long queue still has a claim that other
        sidecars see, even after it was offered all slots."""
        if due and request.service_class is BULK:
            return request.cost
        full, occupancy = self.ledger.room <= 0, self._occupancy()
        rooms = [
            each.room(request.service_class, occupancy, now)
            for each in self.all
            if not each.absolute and not (full and each.divides_free_slots)
        ]
        return max(request.cost, min(MAX_CLAIMED_SHARE * self.ledger.slots_total, *rooms))

    def set_kv(self, request: AdmissionRequest) -> None:
        """Estimates the KV blocks of a request."""
        each = self.service_times.lengths.expected(request.service_class, request.max_tokens)
        request.kv = self.kv.need(request.prompt_tokens, each, request.cost)

    def bulk_batch(self, now: float) -> int:
        """Returns up to which batch of all classes bulk requests may fill the engine in the long
        run."""
        ledger, occupancy = self.ledger, self._occupancy()
        return min(
            ledger.slots_total,
            *(
                max(
                    each.guaranteed(BULK) + ledger.interactive,
                    each.room(BULK, occupancy, now) + occupancy.taken,
                )
                for each in self.all
                if not each.absolute
            ),
        )

    def free_slots(self, service_class: ServiceClass, now: float) -> int:
        """Returns the slots that the next requests of a class could get now if none waited before
        them. A request that is alone may get more."""
        occupancy, least = self._occupancy(), UNLIMITED
        for each in self._limiting_room[service_class.rank]:
            if (room := each.room(service_class, occupancy, now)) < least:
                least = room
        return max(0, least)

    def excess_idle(self, now: float) -> int:
        """Returns the sequences of idle requests that have to leave."""
        occupancy = self._occupancy()
        rooms = (each.room(IDLE, occupancy, now) for each in self._limiting_room[IDLE.rank])
        return self.idle.excess(occupancy, min(rooms), now)

    def _occupancy(self) -> Occupancy:
        """Returns all sequences that run now, in an object that the next call changes."""
        ledger, occupancy = self.ledger, self._current_occupancy
        occupancy.idle = idle = ledger.idle
        occupancy.taken = ledger.leased + ledger.foreign - idle
        occupancy.interactive = ledger.interactive
        occupancy.due = False
        return occupancy


def _overriding(
    method: str, classes: tuple[tuple[Constraint, ...], ...]
) -> tuple[tuple[Constraint, ...], ...]:
    """Returns the constraints of each class that override a method; most do not."""
    nothing = getattr(Constraint, method)
    return tuple(
        tuple(each for each in of_class if getattr(type(each), method) is not nothing)
        for of_class in classes
    )

"""The constraints of one engine, in the order of their evaluation, and what follows from all.

Pure: times are seconds of a monotonic clock. A bulk request that is due (it is owed slots, or was
delayed for as long as it may be) is blocked neither by the reserve, nor by the interactive SLO of
the batch, nor by prefill.
"""

from __future__ import annotations

from collections.abc import Iterable

from orch_sidecar.admission.constraints.adapter import Adapters
from orch_sidecar.admission.constraints.batch import BatchLimit, Limits, limits_for
from orch_sidecar.admission.constraints.constraint import UNLIMITED, Beside, Constraint
from orch_sidecar.admission.constraints.idle import IdleRoom
from orch_sidecar.admission.constraints.kv_cache import KvBudget
from orch_sidecar.admission.constraints.pause import Pause
from orch_sidecar.admission.constraints.prefill import PrefillLimit
from orch_sidecar.admission.constraints.reserve import InteractiveReserve
from orch_sidecar.admission.constraints.slot_offers import SlotOffers, Slots
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, StepTime
from vllm_plugin.contracts.lease_protocol import MAX_CLAIMED_SHARE
from vllm_plugin.contracts.profile import BULK, IDLE, INTERACTIVE, AdmissionRules, ServiceClass


class AdmissionConstraints:
    """The constraints of one engine, and what they are about: its leases (`ledger`), the requests
    that wait, and how long requests take."""

    def __init__(
        self,
        rules: AdmissionRules,
        ledger: Ledger,
        queues: Queues,
        service_times: ServiceTimes,
        more: Iterable[Constraint] = (),
    ) -> None:
        """`more`: further constraints, evaluated before the others."""
        self.rules = rules
        self.offers = SlotOffers(ledger)
        self.pause = Pause(self.offers)
        self.reserve = InteractiveReserve(rules, ledger, queues)
        traffic = self.reserve.has_traffic
        self.batch = BatchLimit(limits_for(rules, 0, None), ledger, self.offers, traffic)
        self._prefill = PrefillLimit(rules, ledger, queues, service_times, self.batch, traffic)
        self.kv = KvBudget(ledger)
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
        # By the rank of a class: those that limit it, and of these those that follow its leases.
        self._of_class = tuple(
            tuple(each for each in self.all if of in each.classes) for of in ServiceClass
        )
        self._absolute = tuple(
            tuple(each for each in of_class if each.absolute) for of_class in self._of_class
        )
        self._rooms = _following("room", self._of_class)
        self.granting = _following("granted", self._of_class)
        self.ending = _following("ended", self._of_class)
        # What the limits were computed from: slots, the largest batch seen, the step time.
        self._measured: tuple[int, int, StepTime | None] = (0, 0, None)
        self._now_beside = Beside()  # made once: it is needed for each request
        self.ledger = ledger
        self.queues = queues
        self.service_times = service_times

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
        for each in self.all:
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
        self.rules = self.reserve.rules = self._prefill.rules = rules
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
        """The first constraint that blocks a request now; None: it can be dispatched.

        Its `kv` has to be set. `due`: a bulk request that goes before interactive ones.
        """
        beside = self._beside()
        beside.due = due
        of_class = self._of_class if beside.taken or beside.idle else self._absolute
        for each in of_class[request.service_class.rank]:
            if not each.inactive and each.blocks(request, beside, now):
                return each
        return None

    def obstacle(
        self, request: AdmissionRequest, now: float, *, due: bool = False
    ) -> Constraint | None:
        """The constraint that would block a request which waits for slots even if just these came
        free: they would be booked for it in vain. None: there is none."""
        ledger = self.ledger
        taken, others = ledger.firm, ledger.slots_total - request.cost
        freed = max(0, taken - others)
        beside = Beside(taken - freed, min(ledger.interactive, others), freed, due=due)
        of_class = self._of_class[request.service_class.rank]
        for each in of_class if beside.taken else ():
            if not each.absolute and each.blocks(request, beside, now):
                return each
        return None

    def room_to_claim(self, request: AdmissionRequest, now: float, *, due: bool) -> int:
        """Slots that the head of a queue, which waits for some, and those behind it could take:
        at most twice those of the engine, so that a long queue still claims some, and others see
        that it does, when all were offered."""
        if due and request.service_class is BULK:
            return request.cost
        full, beside = self.ledger.room <= 0, self._beside()
        rooms = [
            each.room(request.service_class, beside, now)
            for each in self.all
            if not each.absolute and not (full and each.of_free_slots)
        ]
        return max(request.cost, min(MAX_CLAIMED_SHARE * self.ledger.slots_total, *rooms))

    def set_kv(self, request: AdmissionRequest) -> None:
        """Estimates the KV blocks of a request."""
        each = self.service_times.lengths.expected(request.service_class, request.max_tokens)
        request.kv = self.kv.need(request.prompt_tokens, each, request.cost)

    def bulk_batch(self, now: float) -> int:
        """The batch of all classes up to which bulk requests may fill the engine in the long
        run."""
        ledger, beside = self.ledger, self._beside()
        return min(
            ledger.slots_total,
            *(
                max(
                    each.guaranteed(BULK) + ledger.interactive,
                    each.room(BULK, beside, now) + beside.taken,
                )
                for each in self.all
                if not each.absolute
            ),
        )

    def free(self, service_class: ServiceClass, now: float) -> int:
        """Slots that the next requests of a class could get now, if none waits before them. One
        that is alone may get more."""
        beside, least = self._beside(), UNLIMITED
        for each in self._rooms[service_class.rank]:
            if not each.inactive and (room := each.room(service_class, beside, now)) < least:
                least = room
        return max(0, least)

    def excess(self, now: float) -> int:
        """Sequences of idle requests that have to leave."""
        beside = self._beside()
        rooms = (each.room(IDLE, beside, now) for each in self._rooms[IDLE.rank])
        return self.idle.excess(beside, min(rooms), now)

    def _beside(self) -> Beside:
        """All that run now. The next call changes what it returns."""
        ledger, beside = self.ledger, self._now_beside
        beside.idle = idle = ledger.idle
        beside.taken = ledger.leased + ledger.foreign - idle
        beside.interactive = ledger.interactive
        beside.due = False
        return beside


def _following(
    method: str, classes: tuple[tuple[Constraint, ...], ...]
) -> tuple[tuple[Constraint, ...], ...]:
    """Of the constraints of each class, those that define a method; most do not."""
    nothing = getattr(Constraint, method)
    return tuple(
        tuple(each for each in of_class if getattr(type(each), method) is not nothing)
        for of_class in classes
    )

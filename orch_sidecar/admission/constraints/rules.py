"""Decides whether a request can be dispatched now, and if not, which constraint blocks it.

Pure: times are seconds of a monotonic clock. The constraints, in the order of their evaluation:

- slot: leased + foreign + cost stay within the slots that the engine reported. Always.
- batch: no more sequences than keep the SLO of the time per token. Interactive requests count
  among themselves; bulk ones may fill what the bulk SLO allows, and only what the interactive
  one allows while there is interactive traffic: some runs or is expected, because bulk requests
  keep their slots for long.
- reserve: the slots that interactive requests are expected to ask for belong to them.
- prefill: while there is interactive traffic, the engine gets no more bulk prompts than it
  prefills in a moment.
- kv: the KV cache has room for all leases to their ends.
- slot: the engine offers the slots, where other sidecars want them, too (`slot_offers`). Last, so
  that none is booked for a request that waits for something else.

Others' interactive sequences count as this sidecar's own for the batch. A sidecar may have its
equal share of that in any case, so that none is kept out by others which refill their places first:
until these have ended, there are too many.

A request that is alone in the engine is never blocked by batch, reserve or KV: waiting would not
help. A bulk request that is due (it is owed slots, or was delayed for as long as it may be) is
blocked neither by the reserve, nor by the interactive SLO of the batch, nor by prefill.
"""

from __future__ import annotations

from typing import Final

from orch_sidecar.admission.constraints.batch import Limits, limits_for
from orch_sidecar.admission.constraints.kv_cache import KvBudget
from orch_sidecar.admission.constraints.prefill import PrefillBudget, stall_s
from orch_sidecar.admission.constraints.reserve import InteractiveReserve
from orch_sidecar.admission.constraints.slot_offers import SlotOffers
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import (
    AdmissionRequest,
    BlockedBy,
    EngineReport,
    KvNeed,
    Lease,
    StepTime,
)
from vllm_plugin.contracts.lease_protocol import MOST_CLAIMED
from vllm_plugin.contracts.profile import AdmissionRules, ServiceClass

_INTERACTIVE, _BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK

# A lowered KV share recovers, and interactive claims expire, without any event.
_POLL_S: Final = 0.25


class AdmissionConstraints:
    """The constraints of one engine, and the state that each of them needs."""

    def __init__(
        self, rules: AdmissionRules, ledger: Ledger, queues: Queues, service_times: ServiceTimes
    ) -> None:
        self.rules = rules
        self.limits: Limits = limits_for(rules, 0, None)
        self.kv = KvBudget(ledger)
        self.reserve = InteractiveReserve(rules, ledger, queues)
        self.offers = SlotOffers()
        self._prefill = PrefillBudget()
        # What the limits were computed from: slots, the largest batch seen, the step time.
        self._measured: tuple[int, int, StepTime | None] = (0, 0, None)
        self._ledger = ledger
        self._queues = queues
        self._service_times = service_times

    # Events

    def begin_epoch(self) -> None:
        """The engine restarted."""
        self.kv.begin_epoch()
        self.offers.begin_epoch()
        self._prefill.begin_epoch()
        self._service_times.begin_epoch()

    def reported(self, report: EngineReport, now: float) -> None:
        """The engine reported its state; the ledger has its slots."""
        self.offers.reported(report)
        self.reserve.sidecars, self.reserve.rivals = self.offers.sidecars, self.offers.contended
        self._prefill.reported(report, self._ledger.leased)
        self.kv.reported(report, now)
        measured = (self._ledger.slots_total, report.batch_seen, report.step_time)
        if measured == self._measured:
            return
        if report.step_time is not self._measured[2]:
            tpot_ms = self.rules.of(_INTERACTIVE).tpot_p95_ms
            self._prefill.measured(report.step_time, tpot_ms, self._ledger.leased)
        before = self.limits if measured[0] == self._measured[0] else None
        self._measured = measured
        fit = report.step_time
        self.reserve.step_time = fit if fit is not None and fit.good else None
        self._set_limits(before)

    def replace_rules(self, rules: AdmissionRules) -> None:
        """Applies reloaded rules."""
        self.rules = self.reserve.rules = rules
        self._set_limits(None)

    def _set_limits(self, before: Limits | None) -> None:
        slots_total, batch_seen, step_time = self._measured
        self.limits = limits_for(
            self.rules, slots_total, step_time, batch_seen, self._prefill.bulk_prompts, before
        )
        self.reserve.resized(slots_total, self.limits.interactive)

    def granted(self, lease: Lease, request: AdmissionRequest, now: float) -> None:
        """The ledger granted a lease for `request`."""
        lease.offered = self.offers.granted(lease.cost)
        if request.service_class is _BULK:
            self._prefill.granted(request.prompt_tokens, now)
        else:
            self._prefill.granted_interactive(request.prompt_tokens)
        self.kv.granted(lease.kv, now)

    def released(self, request: AdmissionRequest) -> None:
        """The lease of `request` ended."""
        if request.service_class is _BULK:
            self._prefill.released()

    # Decisions

    def blocked_by(
        self,
        request: AdmissionRequest,
        kv: KvNeed,
        now: float,
        *,
        due: bool = False,
    ) -> BlockedBy | None:
        """The constraint that blocks a request now; None: it can be dispatched.

        `kv`: from `kv_need`. `due`: a bulk request that goes before interactive ones.
        """
        ledger, cost = self._ledger, request.cost
        taken = ledger.leased + ledger.foreign
        if taken + cost > ledger.slots_total:
            return BlockedBy.SLOT
        if taken:
            blocked_by = self._limited_by(request, taken, ledger.interactive, now, due)
            if blocked_by is not None:
                return blocked_by
            if not self.kv.fits(kv, now):
                return BlockedBy.KV
        offers = self.offers
        if offers.sidecars > 1 or offers.rejected:
            return BlockedBy.SLOT if offers.block(cost) else None
        return None

    def obstacle_to_claim(
        self, request: AdmissionRequest, now: float, *, due: bool
    ) -> BlockedBy | None:
        """The limit that would block a request which waits for slots even if just these came free:
        they would be booked for it in vain. None: there is none."""
        others = self._ledger.slots_total - request.cost
        taken = min(self._ledger.leased + self._ledger.foreign, others)
        if not taken:
            return None
        interactive = min(self._ledger.interactive, others)
        return self._limited_by(request, taken, interactive, now, due)

    def _limited_by(
        self, request: AdmissionRequest, taken: int, interactive: int, now: float, due: bool
    ) -> BlockedBy | None:
        """The limit that blocks a request beside `taken` sequences, of which so many are
        interactive ones of this sidecar."""
        if request.service_class is _BULK:
            return self._bulk_blocked_by(request, taken, now, due)
        if not interactive or self.limits.interactive >= self._ledger.slots_total:
            return None
        return BlockedBy.BATCH if request.cost > self._interactive_room(interactive) else None

    def _interactive_room(self, own: int) -> int:
        """Interactive sequences that keep the SLO beside `own` ones and those of others."""
        limit, others = self.limits.interactive, self._ledger.foreign_interactive
        room = limit - own - others
        return max(room, limit // self.offers.sidecars - own) if others else room

    def claimable(self, request: AdmissionRequest, now: float, *, due: bool) -> int:
        """Slots that the head of a queue, which waits for some, and those behind it could take:
        at most twice those of the engine, so that a long queue still claims some, and others see
        that it does, when all were offered."""
        ledger, total = self._ledger, self._ledger.slots_total
        if due and request.service_class is _BULK:
            return request.cost
        if request.service_class is _INTERACTIVE:
            most = self._interactive_room(ledger.interactive)
            if self.limits.interactive >= total:
                most = MOST_CLAIMED * total
        else:
            taken = ledger.leased + ledger.foreign
            limit = self.limits.mixed if self.reserve.traffic(now) else self.limits.bulk
            most = MOST_CLAIMED * total if limit >= total else limit - taken
            if ledger.room > 0:  # else any that comes free may be one of bulk requests
                most = min(most, self.reserve.lendable(now) - (taken - ledger.interactive))
        return max(request.cost, most)

    def _bulk_blocked_by(
        self, request: AdmissionRequest, taken: int, now: float, due: bool
    ) -> BlockedBy | None:
        cost, limits, reserve = request.cost, self.limits, self.reserve
        if taken + cost > limits.bulk:
            return BlockedBy.BATCH
        if due:
            return None
        if taken - self._ledger.interactive + cost > reserve.lendable(now):
            return BlockedBy.RESERVE
        if not reserve.traffic(now):
            return None
        if taken + cost > limits.mixed:
            return BlockedBy.BATCH
        fits = self._prefill.fits(request.prompt_tokens, self._stall_s(), now)
        return None if fits else BlockedBy.PREFILL

    def kv_need(self, request: AdmissionRequest) -> KvNeed:
        """Estimates the KV blocks of a request."""
        each = self._service_times.lengths.expected(request.service_class, request.max_tokens)
        return self.kv.need(request.prompt_tokens, each, request.cost)

    def bulk_capacity(self, now: float) -> int:
        """The batch of both classes up to which bulk requests may fill the engine now."""
        return self.reserve.bulk_capacity(self.limits, now)

    def free(self, service_class: ServiceClass, now: float) -> int:
        """Slots that the next requests of a class could get now, if none waits before them. One
        that is alone may get more."""
        ledger, limits = self._ledger, self.limits
        if self.offers.contended:
            return 0  # others are before them
        taken = ledger.leased + ledger.foreign
        free = ledger.slots_total - taken
        if service_class is _INTERACTIVE:
            free = min(free, self._interactive_room(ledger.interactive))
        else:
            most = limits.mixed if self.reserve.traffic(now) else limits.bulk
            lendable = self.reserve.lendable(now) + ledger.interactive
            free = min(free, most - taken, lendable - taken)
        return max(0, free)

    def free_slots(self) -> int:
        """Slots that requests of the most urgent class can have, whatever is queued."""
        ledger = self._ledger
        if self.rules.interactive is None:
            return ledger.room
        return min(ledger.room, self.limits.interactive - ledger.interactive)

    def clears_at(self, blocked_by: BlockedBy, now: float) -> float | None:
        """When the constraint may clear for the head of the queue without any event."""
        if blocked_by in (BlockedBy.KV, BlockedBy.RESERVE, BlockedBy.BATCH):
            return now + _POLL_S
        bulk = self._queues.head(_BULK)
        if blocked_by is BlockedBy.PREFILL and bulk is not None:
            at = self._prefill.fits_at(bulk.request.prompt_tokens, self._stall_s(), now)
            return now + _POLL_S if at is None else min(max(at, now + 1e-3), now + _POLL_S)
        return None

    def bulk_prompts_ahead(self, request: AdmissionRequest) -> float:
        """Prompt tokens of the bulk requests that go before one that arrives now."""
        prompt_work, charge = self._queues.tokens(_BULK)
        return prompt_work * self._queues.ahead(request).tokens / charge if charge else 0.0

    def prefill_in_s(self, request: AdmissionRequest, ahead: float, now: float) -> float:
        """Seconds until the engine has time for the prompt of a bulk request, at least. `ahead`:
        prompt tokens of those that go before it."""
        return self._prefill.fits_in_s(ahead, request.prompt_tokens, self._stall_s(), now)

    def _stall_s(self) -> float:
        return stall_s(self.rules.of(_INTERACTIVE).ttft_p95_ms, self._interactive_wait_s())

    def _interactive_wait_s(self) -> float:
        """The predicted wait of the next interactive request: the work queued before it, by the
        measured step time and output lengths, over the sequences that run at once. 0: unknown."""
        head = self._queues.head(_INTERACTIVE)
        if head is None:
            return 0.0
        service_s = self._service_times.service_s(head.request)
        most = max(1, self.limits.interactive)
        return 0.0 if service_s is None else self._queues.cost(_INTERACTIVE) * service_s / most

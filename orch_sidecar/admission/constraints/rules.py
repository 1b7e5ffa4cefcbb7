"""Decides whether a request can be dispatched now, and if not, which constraint blocks it.

Pure: times are seconds of a monotonic clock. The constraints, in the order of their evaluation:

- slot: leased + foreign + cost stay within the slots that the engine reported. Always.
- window: the engine is idle, and bulk requests arrive so often that they start as a batch.
- batch: no more sequences than keep the SLO of the time per token. Interactive requests count
  among themselves; bulk ones may fill what the bulk SLO allows, and only what the interactive
  one allows while there is interactive traffic: some is queued or running, or arrived in the
  last 10 s, because bulk requests keep their slots for long.
- reserve: a share of the slots belongs to interactive requests while there are any: those that
  they use, and a few more that stay free for the next, up to the share. The rest of it is lent,
  and all of it without such traffic.
- prefill: while there is interactive traffic, the engine gets no more bulk prompts than it
  prefills in a moment.
- kv: the KV cache has room for all leases to their ends.

A request that is alone in the engine is never blocked by batch, reserve or KV: waiting would not
help. A bulk request that interactive traffic has delayed for long enough (`aged`) is blocked
neither by the interactive SLO of the batch nor by prefill, but still by the reserve: interactive
requests within it delay no bulk request. Only one that needs more slots than the reserve leaves is
delayed by it, and gets its slots in the end.
"""

from __future__ import annotations

from typing import Final

from orch_sidecar.admission.constraints.batch import Limits, limits_for
from orch_sidecar.admission.constraints.kv_cache import KvBudget
from orch_sidecar.admission.constraints.prefill import PrefillBudget, stall_s
from orch_sidecar.admission.constraints.reserve import InteractiveReserve
from orch_sidecar.admission.constraints.window import BatchWindow
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import AdmissionRequest, BlockedBy, EngineReport, KvNeed, Lease
from vllm_plugin.profile import AdmissionRules, ServiceClass

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
        self.reserve = InteractiveReserve(ledger, queues)
        self.window = BatchWindow(ledger, queues, service_times)
        self._prefill = PrefillBudget()
        self._ledger = ledger
        self._queues = queues
        self._service_times = service_times

    # Events

    def begin_epoch(self) -> None:
        """The engine restarted."""
        self.kv.begin_epoch()
        self._prefill.begin_epoch()

    def reported(self, report: EngineReport, now: float) -> None:
        self._prefill.reported(report, self._ledger.leased)
        self.kv.reported(report, now)

    def arrived(self, request: AdmissionRequest, now: float) -> None:
        """A request arrived, whatever its outcome."""
        if request.service_class is _BULK:
            self.window.arrived(now)
        else:
            self.reserve.interactive_at = now

    def granted(self, lease: Lease, request: AdmissionRequest, now: float) -> None:
        """The ledger granted a lease for `request`."""
        if request.service_class is _BULK:
            self._prefill.granted(request.prompt_tokens, now)
        self.kv.granted(lease.kv, now)
        if self.window.until is not None:
            self.window.close(now)

    def released(self, request: AdmissionRequest, now: float) -> None:
        """The lease of `request` ended."""
        if request.service_class is _BULK:
            self._prefill.released()
        else:
            self.reserve.interactive_at = now

    # Decisions

    def blocked_by(
        self, request: AdmissionRequest, kv: KvNeed, now: float, *, aged: bool = False
    ) -> BlockedBy | None:
        """The constraint that blocks a request now; None: it can be dispatched.

        `kv`: from `kv_need`.
        """
        ledger, cost = self._ledger, request.cost
        taken = ledger.leased + ledger.foreign
        if taken + cost > ledger.slots_total:
            return BlockedBy.SLOT
        is_bulk = request.service_class is _BULK
        if not taken:
            blocks = is_bulk and self.window.blocks(self.rules.bulk, self.limits, now)
            return BlockedBy.WINDOW if blocks else None
        if is_bulk:
            blocked_by = self._bulk_blocked_by(request, taken, now, aged)
            if blocked_by is not None:
                return blocked_by
        elif ledger.interactive and ledger.interactive + cost > self.limits.interactive:
            return BlockedBy.BATCH
        return None if self.kv.fits(kv, now) else BlockedBy.KV

    def _bulk_blocked_by(
        self, request: AdmissionRequest, taken: int, now: float, aged: bool
    ) -> BlockedBy | None:
        cost, limits, reserve = request.cost, self.limits, self.reserve
        if taken + cost > limits.bulk:
            return BlockedBy.BATCH
        lendable = reserve.lendable(self.rules.reserved_share, now)
        if taken - self._ledger.interactive + cost > lendable and not (aged and cost > lendable):
            return BlockedBy.RESERVE
        if aged or not reserve.traffic(now):
            return None
        if taken + cost > limits.mixed:
            return BlockedBy.BATCH
        fits = self._prefill.fits(request.prompt_tokens, self._stall_s(), now)
        return None if fits else BlockedBy.PREFILL

    def kv_need(self, request: AdmissionRequest) -> KvNeed:
        """Estimates the KV blocks of a request."""
        each = self._service_times.lengths.expected(request.service_class, request.max_tokens)
        return self.kv.need(request.prompt_tokens, each, request.cost)

    def opens_window(self, request: AdmissionRequest, now: float) -> bool:
        """Opens a window if a bulk request that could start now should wait for others."""
        return self.window.opens(request, self.rules.bulk, self.limits, now)

    def closes_window(self, request: AdmissionRequest, now: float) -> bool:
        """Closes a window that is over, or that a bulk request cannot wait for. True: it did."""
        return self.window.closes_for(request, self.rules.bulk, now)

    def bulk_capacity(self, now: float) -> int:
        """The batch of both classes up to which bulk requests may fill the engine now."""
        return self.reserve.bulk_capacity(self.limits, self.rules.reserved_share, now)

    def update_delay(self, now: float) -> None:
        """Updates the delay of bulk requests; to be called after a change."""
        self.reserve.update_delay(self.limits, self.rules.reserved_share, now)

    def clears_at(self, blocked_by: BlockedBy, now: float) -> float | None:
        """When the constraint may clear for the head of the queue without any event."""
        if blocked_by is BlockedBy.WINDOW:
            return self.window.until
        if blocked_by in (BlockedBy.KV, BlockedBy.RESERVE, BlockedBy.BATCH):
            return now + _POLL_S
        bulk = self._queues.head(_BULK)
        if blocked_by is BlockedBy.PREFILL and bulk is not None:
            at = self._prefill.fits_at(bulk.request.prompt_tokens, self._stall_s(), now)
            return now + _POLL_S if at is None else min(max(at, now + 1e-3), now + _POLL_S)
        return None

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

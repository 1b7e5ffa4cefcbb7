"""Who goes next.

Pure: times are seconds of a monotonic clock. A bulk request that interactive traffic has delayed
by `aging_s`; else interactive requests; else bulk ones; within a class first come, first served.
A request that does not fit holds up those behind it, so that one that needs many slots is not
passed by for ever; only one that waits for others of its own class to end (an interactive one
for `Hold.BATCH`, a bulk one for `Hold.RESERVE`) lets the other class go. Nobody waits who could
go: the first one waits only for what `BlockedBy` names.
"""

from __future__ import annotations

from orch_sidecar.admission.constraints.kv_cache import KvNeed
from orch_sidecar.admission.constraints.rules import AdmissionConstraints, BlockedBy
from orch_sidecar.admission.queues import QueuedRequest, Queues
from orch_sidecar.admission.types import AdmissionRequest
from vllm_plugin.profile import AdmissionRules, ServiceClass

_INTERACTIVE, _BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK


class QueueOrder:
    """The order of those who wait for one engine."""

    def __init__(self, rules: AdmissionRules, queues: Queues, scarce: AdmissionConstraints) -> None:
        self.rules = rules
        self.hold: BlockedBy | None = None  # what the first of those who wait waits for
        self.paused_until = float("-inf")
        self._queues = queues
        self._scarce = scarce

    def next(self, now: float) -> QueuedRequest | None:
        """Who goes now; if nobody does, `hold` says why."""
        self.hold = None
        if not self._queues.depth:
            return None
        if now < self.paused_until:
            self.hold = BlockedBy.PAUSE
            return None
        bulk, interactive = self._queues.head(_BULK), self._queues.head(_INTERACTIVE)
        aged = bulk is not None and self._is_aged(bulk, now)
        for waiting in (bulk, interactive) if aged else (interactive, bulk):
            if waiting is None:
                continue
            need = self._scarce.need(waiting.ask)
            hold = self._scarce.hold(waiting.ask, need, now, aged=aged and waiting is bulk)
            if hold is None:
                return waiting
            self.hold = self.hold or hold
            if hold is not (BlockedBy.RESERVE if waiting is bulk else BlockedBy.BATCH):
                return None
        return None

    def holds(self, ask: AdmissionRequest, need: KvNeed, now: float) -> BlockedBy | None:
        """What a request that comes now has to wait for; None: nothing.

        `need`: what it will take of the KV cache.
        """
        if self._queues.depth and self._somebody_ahead(ask.service_class, now):
            return self.hold or BlockedBy.SLOT
        if now < self.paused_until:
            return BlockedBy.PAUSE
        return self._scarce.hold(ask, need, now)

    def ends_at(self, hold: BlockedBy, now: float) -> float | None:
        """When this hold ends of itself; None: that cannot be foreseen."""
        if hold is BlockedBy.PAUSE:
            return self.paused_until
        return self._scarce.eases_at(hold, now)

    def changes_at(self, now: float) -> float | None:
        """When somebody may go although nothing happens; None: not foreseeable."""
        bulk = self._queues.head(_BULK)
        times = [] if self.hold is None else [self.ends_at(self.hold, now)]
        if bulk is not None and not self._is_aged(bulk, now):
            times.append(self._scarce.clock.reaches_at(bulk.delay_s + self.rules.aging_s))
        return min((at for at in times if at is not None), default=None)

    def _somebody_ahead(self, service_class: ServiceClass, now: float) -> bool:
        """Whether somebody waits whom a request of this class must not pass by."""
        bulk, interactive = self._queues.head(_BULK), self._queues.head(_INTERACTIVE)
        if service_class is _BULK:
            # Interactive ones that only wait for each other let bulk ones go.
            return bulk is not None or not self._only_waits(interactive, BlockedBy.BATCH, now)
        if interactive is not None:
            return True
        # An aged one that waits for the reserve waits for other bulk ones only.
        return (
            bulk is not None
            and not self._only_waits(bulk, BlockedBy.RESERVE, now)
            and self._is_aged(bulk, now)
        )

    def _only_waits(self, first: QueuedRequest | None, hold: BlockedBy, now: float) -> bool:
        """Whether it waits for that. Whose time is over goes: the next may wait for another."""
        return self.hold is hold and first is not None and now < first.expires

    def _is_aged(self, bulk: QueuedRequest, now: float) -> bool:
        return self._scarce.clock.value(now) >= bulk.delay_s + self.rules.aging_s

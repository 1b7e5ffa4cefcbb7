"""The asyncio shell around the admission core: a future per waiting request, one timer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

from orch_sidecar.admission.core import Admission, Decision
from orch_sidecar.admission.ledger import Lease
from orch_sidecar.reasons import Refusal


class Gate:
    """Performs the core's decisions. Lives on one event loop."""

    def __init__(self, core: Admission) -> None:
        self.core = core
        # Tells this sidecar's leases from those of another, or of itself before a restart.
        self.instance = os.urandom(8).hex()
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[str, asyncio.Future[Lease | Refusal]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def admit(self, cost: int) -> Lease | Refusal:
        """Waits for a slot. Cancellation leaves the queue, or gives an unused lease back."""
        request = f"{self.instance}.{os.urandom(16).hex()}.{cost}"
        outcome = self.core.arrive(request, cost, self._loop.time())
        if outcome is not None:
            return outcome
        waiter: asyncio.Future[Lease | Refusal] = self._loop.create_future()
        self._waiters[request] = waiter
        self._set_timer()
        try:
            return await waiter
        except asyncio.CancelledError:
            if self._waiters.pop(request, None) is not None:
                self._perform(self.core.leave(request, self._loop.time()))
            else:
                self.release(request)  # it was decided meanwhile: nobody takes that lease
            raise

    def release(self, lease_id: str) -> None:
        """The engine's answer has ended."""
        self._perform(self.core.release(lease_id, self._loop.time()))

    def abandon(self, lease_id: str) -> None:
        """The answer was cut short; the engine has to confirm the end of the lease."""
        self.core.abandon(lease_id)

    def engine_reports(self, epoch: str, slots_total: int, foreign: int) -> None:
        self._perform(self.core.engine_reports(epoch, slots_total, foreign, self._loop.time()))

    def engine_unavailable(self, refusal: Refusal) -> None:
        self.core.engine_unavailable(refusal)

    def engine_ended(self, leases: Iterable[str]) -> None:
        self._perform(self.core.engine_ended(leases, self._loop.time()))

    def dismiss(self) -> None:
        """Refuses all who are still queued."""
        self._perform(self.core.dismiss())

    def _perform(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            waiter = self._waiters.pop(decision.request)
            if not waiter.done():
                waiter.set_result(decision.outcome)

    def _set_timer(self) -> None:
        if self._timer is None and (deadline := self.core.next_deadline()) is not None:
            self._timer = self._loop.call_at(deadline, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._perform(self.core.tick(self._loop.time()))
        self._set_timer()

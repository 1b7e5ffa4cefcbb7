"""Who gets a slot, who waits, who is refused.

Pure: times are seconds of a monotonic clock and come as arguments; whatever a call decides
about other requests than its own is in the decisions that it returns.

First come, first served, in one bounded queue: a request that does not fit holds up those
behind it, so that one that needs many slots is not passed by for ever. That is work-conserving
in the sense that the head never waits while it would fit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from orch_sidecar.admission.drain import DrainRate
from orch_sidecar.admission.ledger import Lease, Ledger
from orch_sidecar.reasons import Reason, Refusal


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued request."""

    cost: int
    deadline: float


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a request that was waiting. Its id is the id of its lease."""

    request: str
    outcome: Lease | Refusal


class Admission:
    """The admission of one engine. Request ids are chosen by the caller, unique and secret."""

    def __init__(self, queue_capacity: int, queue_timeout_s: float) -> None:
        self.ledger = Ledger()
        self.drain_rate = DrainRate()
        self._capacity = queue_capacity
        self._timeout_s = queue_timeout_s
        self._queue: OrderedDict[str, Waiting] = OrderedDict()
        self._queued_cost = 0
        self._unavailable: Refusal | None = Refusal(
            Reason.ENGINE_STARTING, "the engine has not reported its slots yet"
        )
        self._draining = False

    # What the engine says.

    def engine_reports(
        self, epoch: str, slots_total: int, foreign: int, now: float
    ) -> list[Decision]:
        """The engine is ready, with so many slots, so many of them taken past this sidecar."""
        decisions: list[Decision] = []
        if epoch != self.ledger.epoch:
            self.ledger.begin_epoch(epoch)
        self.ledger.slots_total = slots_total
        self.ledger.foreign = foreign
        self._unavailable = None
        for request, waiting in list(self._queue.items()):
            if waiting.cost > slots_total:
                self._leave(request)
                decisions.append(Decision(request, self._too_large(waiting.cost)))
        return decisions + self._fill(now)

    def engine_unavailable(self, refusal: Refusal) -> None:
        """Nothing is admitted until the engine reports again; who is queued keeps waiting."""
        self._unavailable = refusal

    def engine_ended(self, leases: Iterable[str], now: float) -> list[Decision]:
        """The engine says that nothing carries these leases any more."""
        return [decision for lease in leases for decision in self.release(lease, now)]

    # What requests do.

    def arrive(self, request: str, cost: int, now: float) -> Lease | Refusal | None:
        """A request wants `cost` slots. None: it waits, and its outcome comes as a decision."""
        if self._draining:
            return Refusal(Reason.DRAINING, "this sidecar is shutting down", retry_after_ms=1000)
        if self._unavailable is not None:
            return self._unavailable
        if cost > self.ledger.slots_total:
            return self._too_large(cost)
        if not self._queue and cost <= self.ledger.room:
            return self.ledger.grant(request, cost)
        if len(self._queue) >= self._capacity:
            return Refusal(
                Reason.QUEUE_FULL,
                f"all {self.ledger.slots_total} slots are taken and the queue holds its "
                f"{self._capacity} requests",
                retry_after_ms=self._retry_after_ms(cost, now),
            )
        self._queue[request] = Waiting(cost, now + self._timeout_s)
        self._queued_cost += cost
        return None

    def leave(self, request: str, now: float) -> list[Decision]:
        """A queued request went away (its client left). Does nothing if it is not queued."""
        self._leave(request)
        return self._fill(now)

    def release(self, lease_id: str, now: float) -> list[Decision]:
        """The engine has done with this lease. Does nothing if it was released before."""
        cost = self.ledger.release(lease_id)
        if not cost:
            return []
        self.drain_rate.released(cost, now)
        return self._fill(now)

    def abandon(self, lease_id: str) -> None:
        """The answer was cut short; the lease stays out until the engine says that it ended."""
        self.ledger.abandon(lease_id)

    # What time and the operator do.

    def tick(self, now: float) -> list[Decision]:
        """Refuses those who have waited too long."""
        decisions = []
        for request, waiting in list(self._queue.items()):
            if waiting.deadline > now:
                break  # one time limit for all: later ones arrived later
            self._leave(request)
            decisions.append(Decision(request, self._waited_too_long(waiting, now)))
        return decisions + self._fill(now)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""
        return next((waiting.deadline for waiting in self._queue.values()), None)

    def drain(self) -> None:
        """Refuses whoever comes from now on; who is queued or served is served."""
        self._draining = True

    def dismiss(self) -> list[Decision]:
        """Refuses all who are still queued: the time to drain is over."""
        refusal = Refusal(Reason.DRAINING, "this sidecar is shutting down", retry_after_ms=1000)
        decisions = [Decision(request, refusal) for request in self._queue]
        self._queue.clear()
        self._queued_cost = 0
        return decisions

    @property
    def draining(self) -> bool:
        return self._draining

    @property
    def unavailable(self) -> Refusal | None:
        """Why nothing can be admitted now, if so."""
        return self._unavailable

    @property
    def queue_depth(self) -> int:
        return len(self._queue)

    def _fill(self, now: float) -> list[Decision]:
        decisions: list[Decision] = []
        while self._queue and self._unavailable is None:
            request, waiting = next(iter(self._queue.items()))
            if waiting.cost > self.ledger.room:
                break
            self._leave(request)
            decisions.append(Decision(request, self.ledger.grant(request, waiting.cost)))
        return decisions

    def _leave(self, request: str) -> None:
        waiting = self._queue.pop(request, None)
        if waiting is not None:
            self._queued_cost -= waiting.cost

    def _too_large(self, cost: int) -> Refusal:
        return Refusal(
            Reason.COST_EXCEEDS_SLOTS,
            f"this request needs {cost} sequences at once (n times the number of prompts), "
            f"the engine has {self.ledger.slots_total} slots",
        )

    def _waited_too_long(self, waiting: Waiting, now: float) -> Refusal:
        if self._unavailable is not None:
            return self._unavailable
        return Refusal(
            Reason.QUEUE_TIMEOUT,
            f"no slot came free within the queue's {self._timeout_s:g} s",
            retry_after_ms=self._retry_after_ms(waiting.cost, now),
        )

    def _retry_after_ms(self, cost: int, now: float) -> int:
        return self.drain_rate.retry_after_ms(self._queued_cost + cost, now)

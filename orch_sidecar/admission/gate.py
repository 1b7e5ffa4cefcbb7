"""Runs the admission of one engine on an event loop: a future per queued request, and one timer.

`reconcile` finds what an exception left behind: tickets and leases without an owner, and decisions
that never reached theirs.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from typing import Final

from orch_sidecar.admission import refusals
from orch_sidecar.admission.claims.engine_claims import EngineClaims
from orch_sidecar.admission.constraints.batch import Limits
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.draining import Drain, OrderedBy
from orch_sidecar.admission.prediction.absence import Absence
from orch_sidecar.admission.status import AdmissionStatus
from orch_sidecar.admission.types import (
    AdmissionRequest,
    Decision,
    EngineReport,
    Lease,
    Owner,
    Queued,
)
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.contracts.profile import BULK, INTERACTIVE, AdmissionRules, ServiceClass

_BLOCK_BYTES: Final = 4096

Outcome = Lease | Refusal


class TicketIds:
    """Ids that nobody can guess: `<instance>.<random>.<cost>`. `instance` distinguishes them from
    those of other sidecars, or of an earlier run."""

    def __init__(self) -> None:
        self.instance = os.urandom(8).hex()
        self._random: list[str] = []  # each is used once

    def new(self, cost: int) -> str:
        """Returns a new id for `cost` sequences."""
        if not self._random:
            block = os.urandom(_BLOCK_BYTES).hex()  # one system call for many ids
            self._random = [block[at : at + 32] for at in range(0, len(block), 32)]
        return f"{self.instance}.{self._random.pop()}.{cost}"


class Gate:
    """Performs the decisions of an admission controller. Lives on one event loop.

    A ticket is the id of an attempt to get slots, and of the lease that it may get. It has an owner
    from `open` to `release`, whatever raises in between.
    """

    def __init__(
        self, controller: AdmissionController, lasted_s: dict[Reason, float] | None = None
    ) -> None:
        """`lasted_s`: how long engines like this one were away, learned together."""
        # Called after each change, while a parent sidecar subscribes to them.
        self.on_change: Callable[[], None] | None = None
        self.orphans = 0  # leases found without an owner, since the start
        self._controller = controller
        self.ledger, self._queues = controller.ledger, controller.queues
        self.offers = controller.constraints.offers
        self.reserve = controller.constraints.reserve
        self._loop = asyncio.get_running_loop()
        controller.absence = Absence(self._loop.time(), lasted_s)
        self.ids = TicketIds()
        self.instance = self.ids.instance
        self.owners: dict[str, Owner] = {}  # by ticket
        # Of queued requests, and of those whose outcomes nobody has read yet.
        self._waiters: dict[str, asyncio.Future[Outcome]] = {}
        self._decided: dict[str, asyncio.Future[Outcome]] = {}
        self.claims = EngineClaims(controller, self.instance)
        controller.reclaim.is_unseen = self._is_unseen
        self._timer: asyncio.Handle | None = None
        # uvloop's `call_at` returns a handle without `when()` for a time that is past.
        self._timer_at = 0.0

    # State

    @property
    def unavailable(self) -> Refusal | None:
        """Why no request is admitted now; a drain is not a reason."""
        return self._controller.unavailable

    def away(self) -> Refusal | None:
        """The same, with the time at which requests are admitted again, as far as it is known."""
        return self._controller.away(self._loop.time())

    @property
    def absence(self) -> Absence:
        return self._controller.absence

    @property
    def reasons(self) -> list[str]:
        """What requests can wait for."""
        return self._controller.constraints.reasons

    @property
    def limits(self) -> Limits:
        """The batches that keep the SLO per token, by the last report."""
        return self._controller.constraints.limits

    @property
    def slots_total(self) -> int:
        return self.ledger.slots_total

    @property
    def room(self) -> int:
        """Free slots; negative while foreign traffic exceeds what is left."""
        return self.ledger.room

    @property
    def queue_depth(self) -> int:
        return self._queues.depth

    def obstacle(self, lease_id: str) -> Refusal | None:
        """Why a request that has waited since its lease was granted can no longer be sent to the
        engine; None: it can."""
        if self._controller.unavailable is not None:
            return self.away()
        return None if self.ledger.owns(lease_id) else refusals.RESTARTED

    def closing(self) -> list[str]:
        """The ids of leases whose end the engine has yet to confirm."""
        return self.ledger.closing()

    def refused(self, request: AdmissionRequest, retry_after_ms: float) -> None:
        """A request with an identity was refused, and asked not to come back before."""
        now, reserve = self._loop.time(), self._controller.constraints.reserve
        demand = reserve.demand(request.service_class)
        demand.refused(request, now + retry_after_ms / 1000, now)

    def fits(self, service_class: ServiceClass, cost: int) -> bool:
        """Whether so many sequences of a class can start now."""
        free = self._controller.constraints.free(service_class, self._loop.time())
        return not self._queues.depth and free >= cost

    def pace_s(self) -> float | None:
        """Seconds per token of each running sequence, as measured; None: unknown."""
        return self._controller.service_times.pace_s(0)

    def outlook(self) -> tuple[float | None, int]:
        """The pace and the free slots of the most urgent class: what the next request has to
        expect."""
        controller, now = self._controller, self._loop.time()
        urgent = BULK if controller.rules.interactive is None else INTERACTIVE
        return controller.service_times.pace_s(), controller.constraints.free(urgent, now)

    def status(self) -> AdmissionStatus:
        """Returns the current state, for metrics and reports."""
        return self._controller.status(self._loop.time())

    # Requests

    def open(self, owner: Owner, cost: int) -> str:
        """Creates a ticket for `cost` sequences and assigns it to `owner.ticket`: to be released in
        a `finally`. An owner with another ticket, or None, owns this one no longer."""
        ticket = owner.ticket = self.ids.new(cost)
        self.owners[ticket] = owner
        return ticket

    def arrive(self, ticket: str, request: AdmissionRequest) -> Lease | Refusal | Queued:
        """Requests slots. Queued: `wait` returns the outcome."""
        arrive = self.claims.arrive if request.parent else self._controller.arrive
        outcome = arrive(ticket, request, self._loop.time())
        if type(outcome) is Queued:
            self._waiters[ticket] = self._loop.create_future()
            for lease_id in self._controller.reclaim.take():
                self.owners[lease_id].reclaim()
        if self._controller.displaced or self._waiters:
            self._perform(self._controller.take_displaced())
        elif self.on_change is not None:
            self.on_change()
        return outcome

    def pause(self, lease_id: str, retry_after_ms: float) -> None:
        """Pauses dispatch: the upstream rejected a request, whose lease is released after this."""
        self._controller.pause(lease_id, retry_after_ms / 1000, self._loop.time())

    def rejected(self, lease_id: str, kind: str) -> None:
        """The engine rejected a request for want of something, by the type of its error."""
        self._controller.rejected(lease_id, kind, self._loop.time())

    def requeue(self, ticket: str, request: AdmissionRequest, since_s: float) -> Queued | Refusal:
        """Queues a request again that the upstream rejected, before all that arrived later.

        `since_s`: the loop's time of its arrival, from which its time limits count.
        """
        now = self._loop.time()
        outcome = self._controller.requeue(ticket, request, since_s, now)
        if isinstance(outcome, Queued):
            self._waiters[ticket] = self._loop.create_future()
            self._perform(self._controller.dispatch(now))
        return outcome

    async def wait(self, ticket: str) -> Lease | Refusal:
        """Returns the outcome of a queued request.

        Cancellation leaves the queue, or releases an unused lease.
        """
        try:
            return await (self._waiters.get(ticket) or self._decided[ticket])
        except asyncio.CancelledError:
            if ticket in self._waiters:
                self._perform(self._controller.leave(ticket, self._loop.time()))
            else:  # decided in the meantime, and the lease is not used
                self.release(ticket, served=False, sent=False)
            raise
        finally:
            self._waiters.pop(ticket, None)
            self._decided.pop(ticket, None)

    def refuse(self, ticket: str, refusal: Refusal) -> bool:
        """Ends the wait of a queued request. False: it is not, or no longer, queued."""
        if ticket not in self._waiters:
            return False
        self._decide(ticket, refusal)
        self._perform(self._controller.leave(ticket, self._loop.time()))
        return True

    def release(
        self,
        ticket: str,
        output_tokens: int | None = None,
        *,
        ended: bool = True,
        served: bool = True,
        sent: bool = True,
    ) -> None:
        """Ends a ticket, whatever has become of it: nothing stays queued or leased under it.

        `ended`: the engine runs nothing of it, so its slots are free; else the response was cut
        short, and the engine has to confirm the end. `output_tokens`: if it completed. `served`:
        the engine ran the request, and did not reject it. `sent`: it got some of it.
        """
        controller, waiters, queues = self._controller, self._waiters, self._queues
        now = self._loop.time()
        self.owners.pop(ticket, None)
        self._decided.pop(ticket, None)
        if waiters.pop(ticket, None) is not None or (queues.depth and ticket in queues):
            self._perform(controller.leave(ticket, now))
        if not ended:
            self.ledger.abandon(ticket)
            return
        decisions = controller.release(ticket, now, output_tokens, served=served, sent=sent)
        if decisions or waiters or self.offers.unused:
            self._perform(decisions)
        elif self.on_change is not None:
            self.on_change()

    # Engine

    def engine_reports(self, report: EngineReport) -> None:
        self._perform(self._controller.engine_reports(report, self._loop.time()))

    def engine_unavailable(self, refusal: Refusal, *, expected: bool | None = None) -> None:
        self._controller.engine_unavailable(refusal, self._loop.time(), expected=expected)
        self._perform([])

    def offered(self, slots: int, number: int) -> None:
        """The engine has booked so many slots for requests that wait, here or at parents."""
        self._perform(self.claims.offered(slots, number, self._loop.time()))

    def leases_ended(self, leases: Iterable[str]) -> None:
        """The engine confirmed that it no longer runs anything under these leases."""
        now = self._loop.time()
        self._perform([each for lease in leases for each in self._controller.release(lease, now)])

    # Operator

    def refuse_queued(self, refusal: Refusal) -> None:
        """Refuses all queued requests."""
        self._perform(self._controller.refuse_queued(refusal))

    def reload(self, rules: AdmissionRules) -> None:
        """Applies reloaded rules to new requests."""
        self._perform(self._controller.replace_rules(rules, self._loop.time()))

    def drain(self, ordered_by: OrderedBy) -> None:
        """Refuses new requests, until the drain is resumed or ends with the engine."""
        self._controller.drain(Drain(ordered_by, time.time()))
        self.notify()

    def resume(self) -> None:
        """Accepts requests again."""
        self._controller.resume()
        self.notify()

    def notify(self) -> None:
        """Reports a change that a parent sidecar can see."""
        if self.on_change is not None:
            self.on_change()

    # Consistency

    def reconcile(self) -> list[str]:
        """Restores the invariants that an exception may have broken between two turns of the event
        loop: each queued ticket has an owner that waits, each owner that waits is queued, each
        lease in use has an owner. Returns the leases without one: they are closing now.
        """
        controller, now = self._controller, self._loop.time()
        self._perform(controller.take_displaced())
        for ticket in [each for each, owner in self.owners.items() if owner.ticket != each]:
            del self.owners[ticket]
            self._decided.pop(ticket, None)
        queued = self._queues.tickets()
        for ticket in sorted((queued | self._waiters.keys()) - self.owners.keys()):
            self._waiters.pop(ticket, None)
            self._perform(controller.leave(ticket, now))
        for ticket in self._waiters.keys() - self._queues.tickets():
            self._decide(ticket, self.ledger.get(ticket) or refusals.LOST)
        orphans = sorted(self.ledger.in_use() - self.owners.keys())
        for lease in orphans:
            self.ledger.abandon(lease)
        self.orphans += len(orphans)
        if self._waiters:  # the timer may be lost, too
            self._perform(controller.dispatch(self._loop.time()))
        return orphans

    def _is_unseen(self, ticket: str) -> bool:
        """Whether the engine runs the ticket's request, and its client has seen nothing of it."""
        owner = self.owners.get(ticket)
        return owner is not None and owner.unseen

    def _decide(self, ticket: str, outcome: Outcome) -> None:
        """Ends the wait of a request."""
        waiter = self._waiters.pop(ticket, None)
        if waiter is None:
            return  # an exception removed its owner, and reconciliation finds the lease
        self._decided[ticket] = waiter
        if not waiter.done():
            waiter.set_result(outcome)

    def _perform(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self._decide(decision.ticket, decision.outcome)
        if self._waiters:
            self._set_timer()
        self.claims.update()
        if self.on_change is not None:
            self.on_change()

    def _set_timer(self) -> None:
        """Sets the one timer to the next event."""
        at = self._controller.next_event(self._loop.time())
        if self._timer is not None:
            if at is None or self._timer_at <= at + 1e-3:
                return  # it may fire early, and is then set again
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self._loop.call_at(at, self._on_time)
            self._timer_at = at

    def _on_time(self) -> None:
        self._timer = None
        self._perform(self._controller.dispatch(self._loop.time()))

"""Runs the admission of one engine on an event loop: a ticket per request, and one timer.

    ticket = gate.open(owner, request)
    try:
        lease = await ticket.lease()
    finally:
        ticket.end()

`reconcile` finds what an exception left behind: tickets and leases without an owner, and decisions
that never reached theirs.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from orch_sidecar.admission import refusals
from orch_sidecar.admission.availability import Absence, Drain, OrderedBy
from orch_sidecar.admission.claims import EngineClaims
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.prediction.forecast import Place
from orch_sidecar.admission.types import (
    AdmissionRequest,
    Decision,
    EngineReport,
    Lease,
    Owner,
    Queued,
)
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.contracts.profile import AdmissionRules, ServiceClass

_BLOCK_BYTES: Final = 4096

Outcome = Lease | Refusal


class TicketIds:
    """Ids that nobody can guess: `<instance>.<random>.<cost>`. `instance` distinguishes them from
    those of other sidecars, or of an earlier run."""

    def __init__(self) -> None:
        self.instance = os.urandom(8).hex()
        self._unused: list[str] = []  # of one sequence

    def new(self, cost: int) -> str:
        """Returns a new id for `cost` sequences."""
        if not self._unused:  # one system call for many
            between = f".1 {self.instance}."
            ids = between + os.urandom(_BLOCK_BYTES).hex(" ", 16).replace(" ", between) + ".1"
            self._unused = ids.split()[1:]
        unused = self._unused.pop()
        return unused if cost == 1 else f"{unused[:-1]}{cost}"


class Ticket:
    """A request's attempt to get slots of an engine. It has to be ended, whatever happens.

    `id`: also that of the lease that it may get. `queued`: set if it was not decided at once.
    `outcome`: None until it is decided. `owner`: the request that ends it; None once the end has
    begun, or is left to reconciliation. `movable`: another address of the pool may take it over
    while it is queued. `since_s`: when the request arrived, by the loop's clock; its time limits
    count from then.
    """

    __slots__ = (
        "_decided", "_gate", "id", "movable", "outcome", "owner", "queued", "request", "since_s",
    )  # fmt: skip

    movable: bool
    outcome: Outcome | None
    since_s: float
    _decided: asyncio.Future[None]  # of one that was queued

    def __init__(self, gate: Gate, owner: Owner, request: AdmissionRequest) -> None:
        self.id = gate.ids.new(request.cost)
        self.request = request
        self.owner: Owner | None = owner
        self.queued: Queued | None = None
        self._gate = gate

    async def lease(self) -> Outcome:
        """Returns the lease, or why there is none; waits while the request is queued."""
        if self.queued is not None:
            try:
                await self._decided
            except asyncio.CancelledError:
                self._gate.left[self.request.service_class] += 1
                raise
        outcome = self.outcome
        if type(outcome) is Refusal and not outcome.moved:
            self._gate.refused[self.request.service_class, outcome.reason] += 1
        assert outcome is not None, "it has been decided"
        return outcome

    def place(self, now: float) -> Place | None:
        """Returns its place among the queued requests; None: it is not known."""
        return self._gate.controller.place(self.id, now)

    def obstacle(self) -> Refusal | None:
        """Returns why a request that has waited since it got its lease can no longer be sent;
        None: it can."""
        gate = self._gate
        away = gate.controller.away_refusal(gate._loop.time())
        return away or (None if gate.ledger.owns(self.id) else refusals.RESTARTED)

    def refuse(self, refusal: Refusal) -> bool:
        """Ends the wait. False: it does not wait."""
        gate = self._gate
        if not gate._decide(self.id, refusal):
            return False
        gate._perform(gate.controller.leave(self.id, gate._loop.time()))
        return True

    def end(
        self,
        output_tokens: int | None = None,
        *,
        ended: bool = True,
        served: bool = True,
        sent: bool = True,
        rejection: float | str | None = None,
    ) -> None:
        """Ends the attempt in any state: nothing stays queued or leased under its id.

        `output_tokens`: set if the request completed. `ended`: the engine runs nothing of it, so
        its slots are free; otherwise the response was cut short, and the engine has to confirm the
        end. `served`: the engine ran the request, and did not reject it. `sent`: the engine got
        some of it. `rejection`: the upstream rejected it for now. A number: nothing is dispatched
        in its place for that many milliseconds. A text: the type of the error names what it lacks.
        """
        self.owner, gate = None, self._gate
        controller, now = gate.controller, gate._loop.time()
        gate.tickets.pop(self.id, None)
        if rejection is not None:  # before the lease ends, which would dispatch another
            self._rejected(rejection, now)
        if self.queued is not None and (
            gate.waiting.pop(self.id, None) is not None or self.id in controller.queues
        ):
            gate._perform(controller.leave(self.id, now))
        if type(self.outcome) is Refusal:
            self._refused(self.outcome, now)
            return
        if not ended:
            gate.ledger.abandon(self.id)
            return
        decisions = controller.release(self.id, now, output_tokens, served, sent)
        if decisions or gate.waiting or gate.offers.unused:
            gate._perform(decisions)
        elif gate.on_change is not None:
            gate.on_change()

    def _rejected(self, rejection: float | str, now: float) -> None:
        controller = self._gate.controller
        if isinstance(rejection, str):
            controller.rejected(self.id, rejection, now)
        else:
            controller.pause(self.id, rejection / 1000, now)

    def _refused(self, refusal: Refusal, now: float) -> None:
        """Remembers when a refused request with an identity may come back."""
        request, retry_ms = self.request, refusal.retry_after_ms
        if request.identity and retry_ms is not None and not refusal.moved:
            demand = self._gate.reserve.demand(request.service_class)
            demand.refused(request, now + retry_ms / 1000, now)


class Gate:
    """Performs the decisions of an admission controller. Lives on one event loop."""

    def __init__(
        self, controller: AdmissionController, durations_s: dict[Reason, float] | None = None
    ) -> None:
        """`durations_s`: how long engines like this one were away, shared by them."""
        # Called after each change, while a parent sidecar subscribes to them.
        self.on_change: Callable[[], None] | None = None
        self.orphans = 0  # leases found without an owner, since the start
        # Requests that got no lease, since the start; admission counts the others.
        self.refused: Counter[tuple[ServiceClass, Reason]] = Counter()
        self.left: Counter[ServiceClass] = Counter()  # whose clients left before that
        self.controller = controller
        self.ledger = controller.ledger
        self.offers = controller.constraints.offers
        self.reserve = controller.constraints.reserve
        self._loop = asyncio.get_running_loop()
        controller.absence = Absence(self._loop.time(), durations_s)
        self.ids = TicketIds()
        self.instance = self.ids.instance
        self.tickets: dict[str, Ticket] = {}  # those that have not ended, by id
        self.waiting: dict[str, Ticket] = {}  # those of queued requests
        self.claims = EngineClaims(controller, self.instance)
        controller.reclaim.is_unseen = self._is_unseen
        self._timer: asyncio.Handle | None = None
        # uvloop's `call_at` returns a handle without `when()` for a time that is past.
        self._timer_at = 0.0

    def open(self, owner: Owner, request: AdmissionRequest, since_s: float | None = None) -> Ticket:
        """Asks for slots. The ticket's `lease` returns the outcome; call its `end` in a `finally`.

        `since_s`: when a request arrived that had its slots before, by the loop's clock: its time
        limits count from then, and it is queued before all that arrived later.
        """
        ticket = Ticket(self, owner, request)
        controller, now = self.controller, self._loop.time()
        ticket.since_s = now if since_s is None else since_s
        outcome: Lease | Refusal | Queued
        if since_s is None:
            if request.parent:
                outcome = self.claims.arrive(ticket.id, request, now)
            else:
                outcome = controller.arrive(ticket.id, request, now)
        elif controller.unavailable is not None and not controller.keeps_queue:
            outcome = controller.unavailable  # the queue was refused before this came back
        else:
            outcome = controller.requeue(ticket.id, request, since_s, now)
        if isinstance(outcome, Queued):
            self._queue(ticket, outcome)
            is_new = since_s is None
            self._perform(controller.take_displaced() if is_new else controller.dispatch(now))
        else:
            ticket.outcome = outcome
            if controller.displaced or self.waiting:
                self._perform(controller.take_displaced())
            else:
                if self.ledger.idle:
                    self._cut_idle()
                if self.on_change is not None:
                    self.on_change()
        self.tickets[ticket.id] = ticket  # last: reconciliation ends what an exception left behind
        return ticket

    # Engine

    def engine_reports(self, report: EngineReport) -> None:
        self._perform(self.controller.engine_reports(report, self._loop.time()))

    def engine_unavailable(self, refusal: Refusal, *, expected: bool | None = None) -> None:
        now = self._loop.time()
        self._perform(self.controller.engine_unavailable(refusal, now, expected=expected))

    def offered(self, slots: int, number: int) -> None:
        """Dispatches under an offer of the engine: `slots` for requests here or at parents."""
        self._perform(self.claims.offered(slots, number, self._loop.time()))

    def leases_ended(self, leases: Iterable[str]) -> None:
        """Releases leases for which the engine confirmed that nothing runs."""
        now = self._loop.time()
        self._perform([each for lease in leases for each in self.controller.release(lease, now)])

    # Operator

    def refuse_queued(self, refusal: Refusal) -> None:
        """Refuses all queued requests."""
        self._perform(self.controller.refuse_queued(refusal))

    def reload(self, rules: AdmissionRules) -> None:
        """Applies reloaded rules to new requests."""
        self._perform(self.controller.replace_rules(rules, self._loop.time()))

    def drain(self, ordered_by: OrderedBy) -> None:
        """Refuses new requests, until the drain is resumed or ends with the engine."""
        self._perform(self.controller.drain(Drain(ordered_by, time.time())))

    def resume(self) -> None:
        """Accepts requests again."""
        self.controller.resume()
        self.notify()

    def notify(self) -> None:
        """Reports a change that a parent sidecar can see."""
        if self.on_change is not None:
            self.on_change()

    # Consistency

    def reconcile(self) -> list[str]:
        """Restores the invariants that an exception may have broken: each queued ticket has an
        owner that waits, each owner that waits is queued, each lease in use has an owner. Returns
        the leases without one, which are closing now."""
        controller, now = self.controller, self._loop.time()
        self._perform(controller.take_displaced())
        for ticket in [each for each in self.tickets.values() if each.owner is None]:
            del self.tickets[ticket.id]
        queued = controller.queues.tickets()
        for lost in sorted((queued | self.waiting.keys()) - self.tickets.keys()):
            self.waiting.pop(lost, None)
            self._perform(controller.leave(lost, now))
        for lost in self.waiting.keys() - controller.queues.tickets():
            self._decide(lost, self.ledger.get(lost) or refusals.LOST)
        orphans = sorted(self.ledger.in_use() - self.tickets.keys())
        for lease in orphans:
            self.ledger.abandon(lease)
        self.orphans += len(orphans)
        if self.waiting:  # the timer may be lost, too
            self._perform(controller.dispatch(self._loop.time()))
        return orphans

    def _is_unseen(self, lease_id: str) -> bool:
        """Whether the engine runs the request of a lease, and its client has seen nothing of it."""
        ticket = self.tickets.get(lease_id)
        return ticket is not None and ticket.owner is not None and ticket.owner.is_unseen

    def _queue(self, ticket: Ticket, queued: Queued) -> None:
        """Has a ticket wait; aborts the requests that were chosen to give up their slots for it."""
        ticket.queued, ticket.movable, ticket.outcome = queued, False, None
        ticket._decided = self._loop.create_future()
        self.waiting[ticket.id] = ticket
        self._abort(self.controller.reclaim.take())

    def _cut_idle(self) -> None:
        """Has idle requests return the slots that others need."""
        self._abort(self.controller.reclaim.cut_idle(self._loop.time()))

    def _abort(self, leases: Iterable[str]) -> None:
        for lease_id in leases:
            if (owner := self.tickets[lease_id].owner) is not None:
                owner.reclaim()

    def _decide(self, ticket_id: str, outcome: Outcome) -> bool:
        """Ends the wait of a request. False: it does not wait. If an exception has ended its owner,
        reconciliation finds the lease."""
        ticket = self.waiting.pop(ticket_id, None)
        if ticket is None:
            return False
        ticket.outcome = outcome
        if not ticket._decided.done():
            ticket._decided.set_result(None)
        return True

    def _perform(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self._decide(decision.ticket, decision.outcome)
        if self.ledger.idle:
            self._cut_idle()
        if self.waiting:
            self._set_timer()
        self.claims.update()
        if self.on_change is not None:
            self.on_change()

    def _set_timer(self) -> None:
        """Sets the one timer to the next event."""
        at = self.controller.next_event(self._loop.time())
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
        self._perform(self.controller.dispatch(self._loop.time()))

"""The asyncio shell around the admission core: a future per waiting request, one timer.

A ticket is the id of an attempt to get slots, and of the lease that it may get. It has an owner
from `open` to `close`, whatever raises in between; `reconcile` looks for what an exception left
behind: tickets and leases without an owner, and decisions that never reached theirs.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.decision import Decision
from orch_sidecar.admission.draining import Drain, OrderedBy
from orch_sidecar.admission.ledger import Lease
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Queued
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.profile import AdmissionRules

_BLOCK_BYTES: Final = 4096

_LOST: Final = Refusal(
    Reason.INTERNAL_ERROR, "the sidecar lost this request's place in the queue; its log says why"
)


class Owner(Protocol):
    """Asks for slots under one ticket at a time."""

    ticket: str | None  # None: it neither waits for slots nor has any


class Gate:
    """Performs the core's decisions. Lives on one event loop."""

    def __init__(self, core: AdmissionController) -> None:
        self.core = core
        # Tells this sidecar's leases from those of another, or of itself before a restart.
        self.instance = os.urandom(8).hex()
        # Who is told that something changed; nobody, while there is no tier above.
        self.changed: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[str, asyncio.Future[Lease | Refusal]] = {}
        self._decided: dict[str, asyncio.Future[Lease | Refusal]] = {}  # not yet taken notice of
        self._owners: dict[str, Owner] = {}
        self.orphans = 0  # leases found without an owner, since the start
        self._timer: asyncio.Handle | None = None
        # uvloop's `call_at` returns a handle without `when()` for a time that has come meanwhile.
        self._timer_at = 0.0
        self._random: list[str] = []  # to be used, each once

    def new_id(self, cost: int) -> str:
        """An id for a request, and for the lease that it may get."""
        if not self._random:
            block = os.urandom(_BLOCK_BYTES).hex()  # the system is asked once for many
            self._random = [block[at : at + 32] for at in range(0, len(block), 32)]
        return f"{self.instance}.{self._random.pop()}.{cost}"

    def open(self, owner: Owner, cost: int) -> str:
        """Makes a ticket for `owner`, whose `ticket` it becomes. `cost`: in sequences.

        To be closed in a `finally`. An owner that has another ticket, or None, owns this one no
        longer, closed or not.
        """
        ticket = owner.ticket = self.new_id(cost)
        self._owners[ticket] = owner
        return ticket

    def close(self, ticket: str) -> None:
        """Ends a ticket: nothing stays queued or leased under it.

        By now its lease has been released or abandoned, unless something raised; then the engine
        has to confirm its end.
        """
        self._owners.pop(ticket, None)
        self._decided.pop(ticket, None)
        queues = self.core.queues
        if self._waiters.pop(ticket, None) is not None or (queues.depth and ticket in queues):
            self._perform(self.core.leave(ticket, self._loop.time()))
        if ticket in self.core.ledger.in_use():
            self.core.abandon(ticket)

    def ask(self, request: str, ask: AdmissionRequest) -> Lease | Refusal | Queued:
        """Asks for slots. Queued: `wait` for what becomes of it."""
        outcome = self.core.arrive(request, ask, self._loop.time())
        if type(outcome) is Queued:
            self._waiters[request] = self._loop.create_future()
        if self.core.displaced or self._waiters:
            self._perform(self.core.take_displaced())
        elif self.changed is not None:
            self.changed()
        return outcome

    def turned_away(self, retry_after_ms: float) -> None:
        """A request was turned away below; to be said before its lease is released."""
        self.core.turned_away(retry_after_ms / 1000, self._loop.time())

    def put_back(self, request: str, ask: AdmissionRequest, since_s: float) -> Queued | Refusal:
        """It was turned away below: it waits again, before all that came later.

        `since_s`: the loop's time when it first asked, from which its time limits count.
        """
        outcome = self.core.put_back(request, ask, since_s, self._loop.time())
        if isinstance(outcome, Queued):
            self._waiters[request] = self._loop.create_future()
            self._perform([])
        return outcome

    async def wait(self, request: str) -> Lease | Refusal:
        """What becomes of a queued request.

        Cancellation leaves the queue, or gives an unused lease back.
        """
        waiter = self._waiters.get(request) or self._decided[request]
        try:
            return await waiter
        except asyncio.CancelledError:
            if request in self._waiters:
                self._perform(self.core.leave(request, self._loop.time()))
            else:  # it was decided meanwhile: nobody takes that lease
                self.release(request, served=False)
            raise
        finally:
            self._waiters.pop(request, None)
            self._decided.pop(request, None)

    def refuse(self, request: str, refusal: Refusal) -> bool:
        """Ends the wait of a request from outside. False: it does not wait (any more)."""
        if request not in self._waiters:
            return False
        self._decide(request, refusal)
        self._perform(self.core.leave(request, self._loop.time()))
        return True

    def release(
        self, lease_id: str, output_tokens: int | None = None, *, served: bool = True
    ) -> None:
        """The engine's answer has ended; `output_tokens` if it did so of itself.

        `served`: the engine had the request, and did not turn it away.
        """
        decisions = self.core.release(lease_id, self._loop.time(), output_tokens, served=served)
        if decisions or self._waiters or self.changed is not None:
            self._perform(decisions)

    def abandon(self, lease_id: str) -> None:
        """The answer was cut short; the engine has to confirm the end of the lease."""
        self.core.abandon(lease_id)

    def engine_reports(self, report: EngineReport) -> None:
        self._perform(self.core.engine_reports(report, self._loop.time()))

    def engine_unavailable(self, refusal: Refusal) -> None:
        self.core.engine_unavailable(refusal)
        self.tell()

    def engine_ended(self, leases: Iterable[str]) -> None:
        self._perform(self.core.engine_ended(leases, self._loop.time()))

    def dismiss(self, refusal: Refusal) -> None:
        """Refuses all who are still queued."""
        self._perform(self.core.dismiss(refusal))

    def reload(self, rules: AdmissionRules) -> None:
        """Other rules, for what comes from now on."""
        self._perform(self.core.replace_rules(rules, self._loop.time()))

    def drain(self, ordered_by: OrderedBy) -> None:
        """Refuses new requests, until what ends such an order."""
        self.core.drain(Drain(ordered_by, time.time()))
        self.tell()

    def resume(self) -> None:
        """Takes requests again."""
        self.core.resume()
        self.tell()

    def tell(self) -> None:
        """Something changed that a tier above would see."""
        if self.changed is not None:
            self.changed()

    def reconcile(self) -> list[str]:
        """Restores what holds between two turns of the event loop, should an exception have
        broken it: each queued ticket has an owner that waits, each owner that waits is queued,
        each lease in use has an owner. Returns the leases that had none: they are closing now.

        O(waiting + leased), about 0.1 us each.
        """
        core, owners = self.core, self._owners
        self._perform(core.take_displaced())
        for ticket in [each for each, owner in owners.items() if owner.ticket != each]:
            del owners[ticket]
            self._decided.pop(ticket, None)
        queued = core.queues.tickets()
        for ticket in (queued | self._waiters.keys()) - owners.keys():
            self._waiters.pop(ticket, None)
            self._perform(core.leave(ticket, self._loop.time()))
        for ticket in self._waiters.keys() - core.queues.tickets():
            self._decide(ticket, core.ledger.in_use().get(ticket) or _LOST)
        orphans = sorted(core.ledger.in_use().keys() - owners.keys())
        for lease in orphans:
            core.abandon(lease)
        self.orphans += len(orphans)
        if self._waiters:  # the timer may be lost, too
            self._perform(core.tick(self._loop.time()))
        return orphans

    def _perform(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self._decide(decision.request, decision.outcome)
        if self._waiters:
            self._set_timer()
        if self.changed is not None:
            self.changed()

    def _decide(self, request: str, outcome: Lease | Refusal) -> None:
        waiter = self._waiters.pop(request, None)
        if waiter is None:
            return  # an exception took its owner away; `reconcile` finds the lease
        self._decided[request] = waiter
        if not waiter.done():
            waiter.set_result(outcome)

    def _set_timer(self) -> None:
        """One timer, for whatever is next."""
        at = self.core.next_event(self._loop.time())
        if self._timer is not None:
            if at is None or self._timer_at <= at + 1e-3:
                return  # it may be early: it looks, and is set anew
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self._loop.call_at(at, self._on_time)
            self._timer_at = at

    def _on_time(self) -> None:
        self._timer = None
        self._perform(self.core.tick(self._loop.time()))

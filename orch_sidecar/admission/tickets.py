"""The tickets of one gate: the owner of each, and a future for each queued request.

Pure. A ticket is the id of an attempt to get slots, and of the lease that it may get. It has an
owner from `open` to the end of its gate's `release`, whatever raises in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from orch_sidecar.admission.types import Lease, Owner
from orch_sidecar.api.refusal import Refusal

if TYPE_CHECKING:
    from asyncio import Future

Outcome = Lease | Refusal

_BLOCK_BYTES: Final = 4096


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


class Tickets:
    """Owners and outcomes by ticket. The futures are those of the caller's event loop."""

    def __init__(self, create_future: Callable[[], Future[Outcome]]) -> None:
        self.ids = TicketIds()
        self.owners: dict[str, Owner] = {}
        self.waiting: dict[str, Future[Outcome]] = {}
        self.decided: dict[str, Future[Outcome]] = {}  # not yet read by `outcome_of`
        self._create_future = create_future

    def unseen(self, ticket: str) -> bool:
        """Whether the engine runs the ticket's request, and its client has seen nothing of it."""
        owner = self.owners.get(ticket)
        return owner is not None and owner.unseen

    def open(self, owner: Owner, cost: int) -> str:
        """Creates a ticket for `cost` sequences and assigns it to `owner.ticket`. An owner with
        another ticket, or None, owns this one no longer, closed or not."""
        ticket = owner.ticket = self.ids.new(cost)
        self.owners[ticket] = owner
        return ticket

    def wait(self, ticket: str) -> None:
        """The ticket's request is queued: `outcome_of` returns its outcome."""
        self.waiting[ticket] = self._create_future()

    def outcome_of(self, ticket: str) -> Future[Outcome]:
        """Returns the future of a queued request."""
        return self.waiting.get(ticket) or self.decided[ticket]

    def read(self, ticket: str) -> None:
        """The outcome was read, or nobody will."""
        self.waiting.pop(ticket, None)
        self.decided.pop(ticket, None)

    def decide(self, ticket: str, outcome: Outcome) -> None:
        """Ends the wait of a request."""
        waiter = self.waiting.pop(ticket, None)
        if waiter is None:
            return  # an exception removed its owner, and reconciliation finds the lease
        self.decided[ticket] = waiter
        if not waiter.done():
            waiter.set_result(outcome)

    def disown(self, queued: Collection[str]) -> list[str]:
        """Forgets tickets that their owners have left, and returns those that wait or are queued
        without an owner."""
        for ticket in [each for each, owner in self.owners.items() if owner.ticket != each]:
            del self.owners[ticket]
            self.decided.pop(ticket, None)
        lost = (set(queued) | self.waiting.keys()) - self.owners.keys()
        for ticket in lost:
            self.waiting.pop(ticket, None)
        return sorted(lost)

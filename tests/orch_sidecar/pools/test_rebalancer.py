"""The queued requests of one address of a pool that are moved to another."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.pools.rebalancer import rebalance
from orch_sidecar.pools.registry import PoolRegistry
from vllm_plugin.contracts.profile import ServiceClass

INTERACTIVE, BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK


@dataclass(eq=False)
class Address:
    """As much of a pool as the rebalancer reads: `waits` are (ticket, class, sequences)."""

    name: str = "cloud-1"

    room: int = 0
    waits: list[tuple[str, ServiceClass, int]] = field(default_factory=list)
    group: str = "cloud"
    unavailable: Refusal | None = None
    moved: list[str] = field(default_factory=list)

    @property
    def queues(self) -> Any:
        return SimpleNamespace(depth=len(self.waits), urgent=len(self.waits))

    @property
    def ledger(self) -> Any:
        return SimpleNamespace(slots_total=self.room, non_idle=0)

    @property
    def gate(self) -> Any:
        tickets = {
            ticket: SimpleNamespace(
                movable=True,
                request=AdmissionRequest(of_class, cost),
                refuse=partial(self.refuse, ticket),
            )
            for ticket, of_class, cost in self.waits
        }
        return SimpleNamespace(waiting=tickets)

    def refuse(self, ticket: str, refusal: Refusal) -> bool:
        assert refusal.moved
        self.waits = [each for each in self.waits if each[0] != ticket]
        self.moved.append(ticket)
        return True


def moved(*addresses: Address) -> list[list[str]]:
    rebalance(cast(PoolRegistry, addresses))
    return [each.moved for each in addresses]


def waits(*names: str, of: ServiceClass = INTERACTIVE, cost: int = 1) -> Any:
    return [(name, of, cost) for name in names]


def test_as_many_move_as_there_are_free_slots_in_order() -> None:
    assert moved(Address(waits=waits("a", "b", "c")), Address(room=2)) == [["a", "b"], []]


def test_interactive_requests_move_before_bulk_ones_that_came_earlier() -> None:
    donor = Address(waits=[*waits("bulk", of=BULK), *waits("interactive")])
    assert moved(donor, Address(room=1))[0] == ["interactive"]


def test_request_that_needs_more_slots_than_are_free_stays() -> None:
    donor = Address(waits=[*waits("large", cost=3), *waits("small")])
    assert moved(donor, Address(room=2))[0] == ["small"]


def test_free_slots_are_used_once_however_many_requests_are_queued() -> None:
    taker = Address(room=3)
    first, second = Address(waits=waits("a", "b")), Address(waits=waits("c", "d", "e"))
    rebalance(cast(PoolRegistry, (first, taker, second)))
    assert second.moved == ["c", "d", "e"], "the longest queue first"
    assert first.moved == []


def test_nothing_moves_to_a_queue_an_unavailable_engine_or_another_pool() -> None:
    away = Refusal(Reason.ENGINE_DOWN, "down")
    for taker in (
        Address(room=1, waits=waits("x")),
        Address(room=1, unavailable=away),
        Address(room=1, group="home"),
        Address(room=0),
    ):
        assert moved(Address(waits=waits("a", "b")), taker)[0] == []

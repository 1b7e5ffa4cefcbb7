"""The tasks of pools: what a failure means for the others, how the addresses of a name come and go,
and which queued requests move between them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.admission.types import AdmissionRequest
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.pools.discovery import (
    MISSING_FOR_S,
    Changes,
    Discovery,
    Member,
    Members,
    rebalance,
)
from orch_sidecar.pools.registry import PoolRegistry
from tests.orch_sidecar.snapshots import CLOUD
from tests.patience import HANG_S
from vllm_plugin.contracts.profile import Profile, ServiceClass


class Watcher:
    """Watches until it is stopped, or fails at once."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.running = False
        self.claim_sender = self

    async def run(self) -> None:
        """Sends claims."""
        await asyncio.Event().wait()

    async def watch(self) -> None:
        if self._error is not None:
            raise self._error
        self.running = True
        try:
            await asyncio.Event().wait()
        finally:
            self.running = False

    async def reconcile(self) -> None:
        await asyncio.Event().wait()


@dataclass(eq=False)
class FakePool:
    """As much of a pool as discovery reads."""

    name: str
    watcher: Watcher
    url: str = "http://engine"
    tier: bool = False
    profile: Profile = CLOUD


class Pools(list[FakePool]):
    """A registry without headless pools."""

    settings = ()


async def test_failed_task_is_raised_while_the_others_go_on_until_the_stop() -> None:
    good, bad = Watcher(), Watcher(ValueError("broken"))
    pools = Pools([FakePool("a", good), FakePool("b", bad)])
    discovery = Discovery(cast(PoolRegistry, pools))
    with pytest.raises(ValueError, match="broken") as raised:
        await asyncio.wait_for(discovery.run(), HANG_S)
    assert raised.value.__notes__ == ["in the task: watch the engine of b"]
    assert good.running
    await discovery.stop()
    assert not good.running


ONE, TWO, THREE = Member(1, "10.0.0.1"), Member(2, "10.0.0.2"), Member(3, "10.0.0.3")

ANSWERING = {ONE, TWO, THREE}


def test_addresses_are_added_in_order_and_reported_once() -> None:
    members = Members()
    assert members.update({"10.0.0.2", "10.0.0.1"}, ANSWERING, 0.0) == Changes((ONE, TWO))
    assert members.update({"10.0.0.2", "10.0.0.1"}, ANSWERING, 1.0) == Changes()


def test_silent_member_is_removed_with_its_address() -> None:
    members = Members()
    members.update({"10.0.0.1", "10.0.0.2"}, ANSWERING, 0.0)
    assert members.update({"10.0.0.2"}, (), 1.0) == Changes(removed=(ONE,))


def test_answering_member_outlives_a_gap_of_the_name_server() -> None:
    members = Members()
    members.update({"10.0.0.1"}, ANSWERING, 0.0)
    assert members.update((), ANSWERING, 1.0) == Changes()
    assert members.update((), ANSWERING, 0.9 + MISSING_FOR_S) == Changes()
    assert members.update(("10.0.0.1",), ANSWERING, 1.0 + MISSING_FOR_S) == Changes()
    assert members.update((), ANSWERING, 2.0 + MISSING_FOR_S) == Changes(), "it counts anew"
    assert members.update((), ANSWERING, 2.0 + 2 * MISSING_FOR_S) == Changes(removed=(ONE,))


def test_number_of_a_removed_member_is_used_again_and_others_keep_theirs() -> None:
    members = Members()
    members.update({"10.0.0.1", "10.0.0.2"}, ANSWERING, 0.0)
    members.update({"10.0.0.2"}, (), 1.0)
    assert members.update({"10.0.0.2", "10.0.0.3"}, ANSWERING, 2.0).added == (
        Member(1, "10.0.0.3"),
    )
    assert members.update({"10.0.0.2", "10.0.0.3", "10.0.0.4"}, ANSWERING, 3.0).added == (
        Member(3, "10.0.0.4"),
    )


def test_members_that_are_removed_and_added_at_once_share_the_number() -> None:
    members = Members()
    members.update({"10.0.0.1"}, ANSWERING, 0.0)
    changes = members.update({"10.0.0.3"}, (), 1.0)
    assert changes == Changes((Member(1, "10.0.0.3"),), (ONE,))


@given(st.lists(st.tuples(st.sets(st.integers(0, 9), max_size=10), st.booleans()), max_size=30))
def test_members_are_the_addresses_and_numbers_are_bounded(
    answers: list[tuple[set[int], bool]],
) -> None:
    members, present, most = Members(), dict[str, Member](), 0
    for now, (found, answers_now) in enumerate(answers):
        addresses = {str(each) for each in found}
        answering = present.values() if answers_now else ()
        changes = members.update(addresses, answering, float(now))
        for removed in changes.removed:
            assert present.pop(removed.address) == removed
            assert removed.address not in addresses
        for added in changes.added:
            assert added.address not in present
            present[added.address] = added
        assert addresses <= present.keys()
        if not answers_now:
            assert addresses == present.keys()
        most = max(most, len(present))
        numbers = [member.number for member in present.values()]
        assert len(set(numbers)) == len(numbers)
        assert max(numbers, default=0) <= most


INTERACTIVE, BULK = ServiceClass.INTERACTIVE, ServiceClass.BULK


@dataclass(eq=False)
class Address:
    """As much of a pool as `rebalance` reads: `waits` are (ticket, class, sequences)."""

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

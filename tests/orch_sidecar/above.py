"""Sidecars above: their leases, the pool they share, and a reader of what they are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from orch_sidecar.admission.ledger import Lease, Ledger
from orch_sidecar.pools import parent_leases as upper
from orch_sidecar.pools.parent_leases import Feed, Listener, ParentLease, ParentLeases, PoolView
from vllm_plugin import profile as profiles

US, THEM, RUN = "a" * 16, "b" * 16, "c" * 16
CLOUD = profiles.load("cloud")


def lease(instance: str = US, number: int = 1, cost: int = 1) -> str:
    """The lease header of a request of that sidecar's."""
    return f"{instance}.{number:032x}.{cost}"


def ledger(slots_total: int = 8) -> Ledger:
    """The ledger of a pool whose engine has reported."""
    made = Ledger()
    made.begin_epoch("e1")
    made.slots_total = slots_total
    return made


def entered(book: ParentLeases, header: str) -> ParentLease:
    """A request that has come in, and was not turned away."""
    presence = book.enter(header)
    assert presence is not None
    return presence


def served(
    book: ParentLeases, header: str, slots: Ledger, cost: int = 1
) -> tuple[ParentLease, Lease]:
    """A request that has entered and got slots."""
    presence = entered(book, header)
    own = slots.grant(f"own-{header}", cost)
    book.granted(presence, slots, own)
    return presence, own


@dataclass
class Reader:
    """A listener that looks whenever a test says so."""

    book: ParentLeases
    look: Callable[[], PoolView]
    instance: str = US
    wakes: int = 0
    listener: Listener = field(init=False)
    feed: Feed = field(init=False)

    def __post_init__(self) -> None:
        self.listener = Listener(self.instance, self.wake)
        self.book.listen(self.listener)
        self.feed = Feed(self.book, self.listener, self.look)

    def wake(self) -> None:
        self.wakes += 1


def view(slots: Ledger, **changes: Any) -> PoolView:
    """The pool `cloud` with those slots, ready, and what its engine said last."""
    engine = {
        "engine": "vllm",
        "profile": "cloud",
        "slots_total": slots.slots_total,
        "running": 2,
        "waiting": 1,
        "peak": 3,
        "foreign": 5,
        "steps_by_batch": {"1": [4, 0.1]},
        "step_time": None,
        "leases": ["not theirs to know"],
        "observed_at": "then",
        "epoch": "e1",
        "state": "ready",
    }
    made = PoolView("cloud", CLOUD, slots, {"interactive": 0, "bulk": 0}, "ready", "", engine)
    return replace(made, **changes)


def foreign(book: ParentLeases, slots: Ledger, instance: str) -> int:
    """The sequences that the instance is told are held by others."""
    value = upper.entry(view(slots), RUN, book.sequences(instance, slots))["foreign"]
    assert isinstance(value, int)
    return value

"""Parent sidecars: their leases, the pool they share, and a subscriber to its state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from orch_sidecar.admission.claims import EngineClaims
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.types import AdmissionRequest, Lease
from orch_sidecar.control.capabilities import StateFeed, state_of
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.pools.parent_leases import ParentLease, ParentLeases
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.status import ClassStatus, PoolStatus, status_of
from vllm_plugin.contracts import profile as profiles
from vllm_plugin.contracts.profile import Profile, ServiceClass
from vllm_plugin.contracts.slot_claims import Subscriber

US, THEM, RUN = "a" * 16, "b" * 16, "c" * 16
CLOUD = profiles.load("cloud")


def lease(instance: str = US, number: int = 1, cost: int = 1) -> str:
    """The lease header of a request of that sidecar."""
    return f"{instance}.{number:032x}.{cost}"


def ledger(slots_total: int = 8) -> Ledger:
    """The ledger of a pool whose engine has reported."""
    made = Ledger()
    made.begin_epoch("e1")
    made.slots_total = slots_total
    return made


def grant(slots: Ledger, lease_id: str, cost: int) -> Lease:
    return slots.grant(lease_id, AdmissionRequest(ServiceClass.BULK, cost), 0.0)


def entered(leases: ParentLeases, header: str) -> ParentLease:
    """A request that has arrived, and was not rejected."""
    request = leases.enter(header)
    assert request is not None
    return request


def served(
    leases: ParentLeases, header: str, slots: Ledger, cost: int = 1
) -> tuple[ParentLease, Lease]:
    """A request that has entered and got slots."""
    request = entered(leases, header)
    own = grant(slots, f"own-{header}", cost)
    leases.granted(request, slots, own)
    return request, own


class FakeSubscriber(Subscriber):
    """A subscriber that a test has look."""

    def __init__(self, leases: ParentLeases, pool: FakePool, instance: str = US) -> None:
        super().__init__(instance, self._woken)
        self.wakes = 0
        leases.readers += 1
        leases.subscribers.add(self)
        self.feed = StateFeed(leases, self, cast(Pool, pool))

    def _woken(self) -> None:
        self.wakes += 1


@dataclass
class FakePool:
    """A pool with a ledger and without an engine. `changes`: to its status; `queued`:
    interactive and bulk requests."""

    ledger: Ledger
    name: str = "cloud"
    profile: Profile = CLOUD
    changes: dict[str, Any] = field(default_factory=dict)
    queued: tuple[int, int] = (0, 0)
    claims: EngineClaims = field(
        default_factory=lambda: EngineClaims(AdmissionController(CLOUD.admission), "d" * 16)
    )

    def status(self) -> PoolStatus:
        """Its admission is idle, but for the slots of the ledger and the queued requests."""
        ledger = self.ledger
        document = {
            "engine": "vllm",
            "profile": "cloud",
            "slots_total": ledger.slots_total,
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
        free = max(0, ledger.room)
        interactive, bulk = (ClassStatus(queued, 0, 0, free, 0.0) for queued in self.queued)
        idle = status_of(AdmissionController(CLOUD.admission), 0.0)
        admission = idle._replace(
            epoch=ledger.epoch,
            slots_total=ledger.slots_total,
            foreign=ledger.foreign,
            leased=ledger.leased,
            interactive=interactive,
            bulk=bulk,
        )
        known: dict[str, Any] = {"document": document, "state": PoolState.READY}
        return PoolStatus(self.name, self.profile, admission, **(known | self.changes))


def published(pool: FakePool, sequences: int = 0) -> dict[str, Any]:
    """The state that is published of a pool, to a parent that owns so many of its slots."""
    return state_of(pool.status(), RUN, sequences)


def state(slots: Ledger, sequences: int = 0, **changes: Any) -> dict[str, Any]:
    return published(FakePool(slots, changes=changes), sequences)


def foreign(leases: ParentLeases, slots: Ledger, instance: str) -> int:
    """The sequences that are reported to the instance as those of others."""
    value = state(slots, leases.sequences(instance, slots))["foreign"]
    assert isinstance(value, int)
    return value

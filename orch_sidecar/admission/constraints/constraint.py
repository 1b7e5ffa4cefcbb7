"""A constraint: one reason for which a request has to wait, and all that follows from it.

Pure: times are seconds of a monotonic clock. A constraint is one module, and one row of the tuple
in `rules`; outside of both nothing names it. It says what it blocks now, whom else a blocked
request keeps waiting, and when it lets one in; it follows the leases that take something of what it
limits. Order of dispatch, predictions, claims, texts, metrics and the simulator follow from that.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum, auto
from typing import ClassVar, Final

from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease
from vllm_plugin.contracts.profile import IDLE, ServiceClass

# The room of a constraint that limits nothing.
UNLIMITED: Final = 1 << 30
# What changes without an event is looked at so often.
POLL_S: Final = 0.25


class Scope(Enum):
    """Whom a blocked request keeps waiting beside itself."""

    ENGINE = auto()  # all behind it: what it waits for is what they would take
    CLASS = auto()  # those of its class: only the ends of such requests let it in
    REQUEST = auto()  # those that need the same; all others pass, within bounds (`set_aside`)


@dataclass(slots=True)
class Beside:
    """The sequences beside which a request would run: all but idle ones, and the interactive ones
    of this sidecar. `freed`: how many of those that run now are taken to have ended. `idle`: those
    that leave for any other request; they count only for what is theirs until they have. `due`: it
    is a bulk request that goes before interactive ones."""

    taken: int = 0
    interactive: int = 0
    freed: int = 0
    idle: int = 0
    due: bool = False

    def taken_for(self, service_class: ServiceClass) -> int:
        """The sequences beside which a request of a class has to find room."""
        return self.taken + self.idle if service_class is IDLE else self.taken


class Constraint:
    """A reason to wait. What a constraint does not define limits nothing.

    `reason`: its name in the API, metrics and on the page. `absolute`: it holds for a request that
    would be alone in the engine, too; others would have that wait for ever. `for_slots`: what it
    lacks are slots, so these are claimed where the engine has other users, and a bulk request that
    ends would give it some. `wastes_slots`: while it blocks, free slots are of no use.
    `of_free_slots`: it says whose the free slots are; one that comes free may be of the same class.
    `classes`: those that it limits; it gets the events of their leases only.
    `inactive`: it limits nothing now: nobody calls it until it is active. `rejection`: the type of
    the error with which an engine rejects a request for want of it. `turn_at`: when it last let in
    a group of which none ran (of REQUEST scope).
    """

    reason: ClassVar[str]
    scope: ClassVar[Scope] = Scope.ENGINE
    absolute: ClassVar[bool] = False
    wastes_slots: ClassVar[bool] = False
    of_free_slots: ClassVar[bool] = False
    classes: ClassVar[tuple[ServiceClass, ...]] = tuple(ServiceClass)
    rejection: ClassVar[str | None] = None
    inactive: bool = False
    turn_at: float = float("-inf")

    @property
    def for_slots(self) -> bool:
        return False

    # What it lets in

    def room(self, service_class: ServiceClass, beside: Beside, now: float) -> int:
        """How many more sequences of a class it lets in."""
        return UNLIMITED

    def blocks(self, request: AdmissionRequest, beside: Beside, now: float) -> bool:
        """Whether a request has to wait."""
        return request.cost > self.room(request.service_class, beside, now)

    def guaranteed(self, service_class: ServiceClass) -> int:
        """Sequences that a class gets in the long run, although it has no room for them now."""
        return 0

    def clears_at(self, request: AdmissionRequest, now: float) -> float | None:
        """When it may let a request in that it blocks, without any event; None: unpredictable."""
        return None

    def starts_in_s(self, request: AdmissionRequest, before: float, now: float) -> float | None:
        """Seconds for which it will block a request at least; None: unknown. `before`: prompt
        tokens of those of its class that go before it."""
        return 0.0

    # Scope.REQUEST

    def takes(self, request: AdmissionRequest) -> bool:
        """Whether a request takes something of what is limited, and so delays one that waits."""
        return False

    def group(self, request: AdmissionRequest) -> Hashable:
        """Requests of one group need the same: they are let in one after the other."""
        return None

    def wanted(self, request: AdmissionRequest) -> str | None:
        """The name by which the engine knows what a request waits for; None: it need not know."""
        return None

    # Events

    def begin_epoch(self) -> None:
        """The engine restarted."""

    def reported(self, report: EngineReport, now: float) -> None:
        """The engine reported its state; the ledger has its slots."""

    def reject(self, request: AdmissionRequest | None = None, now: float = 0.0) -> None:
        """The engine rejected a request that was granted a lease, for want of what this limits."""

    def granted(self, lease: Lease, request: AdmissionRequest, now: float) -> None:
        """A request was granted a lease."""

    def ended(self, request: AdmissionRequest, now: float) -> None:
        """A lease ended."""

    # People

    def text(self) -> str:
        """Completes "it waits for"."""
        raise NotImplementedError

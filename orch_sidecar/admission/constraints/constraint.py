"""Defines what a constraint is: one reason for a request to wait, and all that follows from it.

Pure: times are seconds of a monotonic clock. A constraint is one module and one row of the tuple in
`rules`; nothing outside of these two names it. It says what it blocks now, whom else a blocked
request keeps waiting, and when it lets one in; it follows the leases that use what it limits. The
order of dispatch, predictions, claims, texts, metrics and the simulator are derived from that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar, Final

from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease
from vllm_plugin.contracts.profile import IDLE, AdmissionRules, ServiceClass

# The room of a constraint that limits nothing.
UNLIMITED: Final = 1 << 30
# How often to look at what changes without an event.
POLL_S: Final = 0.25


class Scope(Enum):
    """The requests that a blocked one keeps waiting behind it."""

    ENGINE = auto()  # all: they would take what it waits for
    CLASS = auto()  # those of its class: only the end of such a request lets it in
    REQUEST = auto()  # those that need the same; all others pass, within bounds (`queues`)


@dataclass(slots=True)
class Occupancy:
    """The sequences that a request would join.

    `taken`: all but idle ones. `interactive`: those of this sidecar. `freed`: how many of the
    running ones are assumed to have ended. `idle`: those that give way to any other request.
    `due`: the request is a bulk one that goes before interactive ones.
    """

    taken: int = 0
    interactive: int = 0
    freed: int = 0
    idle: int = 0
    due: bool = False

    def taken_for(self, service_class: ServiceClass) -> int:
        """Returns the sequences that leave a request of this class no room."""
        return self.taken + self.idle if service_class is IDLE else self.taken


@dataclass(slots=True)
class Ahead:
    """The requests of its class that go before a queued one, as a prediction counts them.

    `prompt_tokens`: of each as often as it has sequences. `output_tokens`: expected ones. `held_s`:
    for how long those that nobody passes are blocked; infinite: unknown. `passed`: those that
    others pass, and for how many seconds: the first to go comes first. `needing`: sequences by what
    they need: a constraint with Scope.REQUEST, and its group.
    """

    sequences: int = 0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    held_s: float = 0.0
    passed: list[tuple[float, AdmissionRequest]] = field(default_factory=list)
    needing: dict[tuple[Constraint, Hashable], int] = field(default_factory=dict)


class Constraint:
    """A reason to wait. A method that a constraint does not override limits nothing.

    `reason`: its name in the API, in metrics and on the page. `absolute`: it also blocks a request
    that would be alone in the engine, which the other constraints would keep waiting for ever.
    `lacks_slots`: a request that it blocks waits for slots: they are claimed where the engine has
    other users, and the end of a bulk request would provide some. `wastes_slots`: free slots are of
    no use while it blocks. `divides_free_slots`: it decides whose the free slots are, so that the
    next one to come free may be for the same class. `classes`: those that it limits; it gets the
    events of their leases only. `inactive`: it limits nothing now, and hears of no lease until it
    does; `on_switch` is called when that changes.
    `rejection`: the type of the error with which an engine rejects a request that lacks what it
    limits. `turn_at`: when it last let in a group of which none was running (scope REQUEST).
    """

    reason: ClassVar[str]
    scope: ClassVar[Scope] = Scope.ENGINE
    absolute: ClassVar[bool] = False
    wastes_slots: ClassVar[bool] = False
    divides_free_slots: ClassVar[bool] = False
    classes: ClassVar[tuple[ServiceClass, ...]] = tuple(ServiceClass)
    rejection: ClassVar[str | None] = None
    on_switch: Callable[[], None] | None = None
    _inactive: bool = False
    turn_at: float = float("-inf")

    @property
    def inactive(self) -> bool:
        return self._inactive

    @inactive.setter
    def inactive(self, inactive: bool) -> None:
        if inactive is not self._inactive:
            self._inactive = inactive
            if self.on_switch is not None:
                self.on_switch()

    @property
    def lacks_slots(self) -> bool:
        return False

    # What it lets in

    def room(self, service_class: ServiceClass, occupancy: Occupancy, now: float) -> int:
        """Returns how many more sequences of a class it lets in."""
        return UNLIMITED

    def blocks(self, request: AdmissionRequest, occupancy: Occupancy, now: float) -> bool:
        """Whether a request has to wait."""
        return request.cost > self.room(request.service_class, occupancy, now)

    def guaranteed(self, service_class: ServiceClass) -> int:
        """Returns the sequences that a class gets in the long run, even if it has no room now."""
        return 0

    def clears_at(self, request: AdmissionRequest, now: float) -> float | None:
        """Returns when it may let in a request that it blocks now, without any event. None: nobody
        knows."""
        return None

    def starts_in_s(self, request: AdmissionRequest, ahead: Ahead, now: float) -> float | None:
        """Returns for how many seconds it will at least block a queued request behind others; 0: it
        will not, or slots are what it waits for; None: unknown. It is asked of each request in
        line, whatever blocks the first."""
        return 0.0

    # Scope.REQUEST

    def is_used_by(self, request: AdmissionRequest) -> bool:
        """Whether a request uses some of what is limited, and so delays those that wait for it."""
        return False

    def group(self, request: AdmissionRequest) -> Hashable:
        """Returns what the request needs: those that need the same are let in one by one."""
        return None

    def engine_name(self, request: AdmissionRequest) -> str | None:
        """Returns the engine's name for what a request waits for; None: it need not know."""
        return None

    # Events

    def reloaded(self, rules: AdmissionRules) -> None:
        """The profile was reloaded: its rules are these now."""

    def begin_epoch(self) -> None:
        """The engine restarted."""

    def reported(self, report: EngineReport, now: float) -> None:
        """The engine reported its state; the ledger has its slots."""

    def rejected(self, request: AdmissionRequest | None = None, now: float = 0.0) -> None:
        """The engine rejected a request with a lease: it lacks what this limits."""

    def granted(self, lease: Lease, request: AdmissionRequest, now: float) -> None:
        """A request was granted a lease."""

    def ended(self, request: AdmissionRequest, now: float) -> None:
        """A lease ended."""

    # People

    def text(self) -> str:
        """Returns what completes the sentence "it waits for"."""
        raise NotImplementedError

"""Decides whether the engine has room for the LoRA adapter of a request.

Pure: times are seconds of a monotonic clock. vLLM runs sequences of at most `max_loras` adapters at
once; a sequence of another adapter waits inside the engine, in a slot that it does not use, until
all sequences of one adapter have ended. So the first lease with an adapter takes room for it, and
the last one gives the room back. Requests of the base model, and of adapters that are in use, need
no room. The engine counts the adapters of all its users, and reports which of them others wait for
(`vllm_plugin.state.adapter_use`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from heapq import heapreplace
from itertools import chain
from math import inf
from typing import ClassVar, Final

from orch_sidecar.admission.constraints.constraint import (
    POLL_S,
    UNLIMITED,
    Ahead,
    Constraint,
    Occupancy,
    Scope,
)
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.queues import Group, Queues
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease
from vllm_plugin.contracts.lease_protocol import NO_ADAPTER, PASSED_S
from vllm_plugin.contracts.profile import ServiceClass

# The weight of the last turn in the mean length of turns, and the longest that counts: the requests
# that waited for its end may have left.
_TURN_WEIGHT: Final = 0.25
_MAX_TURN_S: Final = 4 * PASSED_S


class Adapters(Constraint):
    """Limits the adapters that the engine runs at once."""

    reason: ClassVar[str] = "adapter"
    scope: ClassVar[Scope] = Scope.REQUEST
    absolute: ClassVar[bool] = True  # the engine knows better what runs in it
    rejection: ClassVar[str | None] = NO_ADAPTER

    def __init__(self, ledger: Ledger, queues: Queues, service_times: ServiceTimes) -> None:
        self.inactive = True
        self._most = 0  # adapters at once
        self._sequences = Counter[str]()  # of this sidecar's leases, by adapter
        self._foreign: frozenset[str] = frozenset()  # adapters that others use
        self._wanted: frozenset[str] = frozenset()  # adapters that others have waited for longer
        self._joinable = True  # requests of adapters that are in use may start
        # Until when the engine's rejection of an adapter counts: its next report says why.
        self._rejected: dict[str | None, float] = {}
        self._turn_s: float | None = None  # the mean length of turns that others waited for
        # Sequences that each adapter got since it came into use, and the mean where more waited.
        self._taken = Counter[str]()
        self._turn_sequences = 0.0
        self._has_waiters = False  # somebody has waited since the last turn began
        # The seconds to the ends of all running sequences of each adapter, and when they are known.
        self._drained: tuple[tuple[float, int, int], dict[str | None, float]] = (-inf, 0, 0), {}
        self._ledger = ledger
        self._queues = queues
        self._service_times = service_times

    def in_use(self) -> set[str]:
        """Returns the adapters that run now."""
        return {*self._sequences, *self._foreign}

    def is_used_by(self, request: AdmissionRequest) -> bool:
        return request.adapter is not None

    def group(self, request: AdmissionRequest) -> Hashable:
        return request.adapter

    def engine_name(self, request: AdmissionRequest) -> str | None:
        return request.adapter

    def blocks(self, request: AdmissionRequest, occupancy: Occupancy, now: float) -> bool:
        adapter = request.adapter
        if adapter is None:
            return False
        if self._rejected and now < self._rejected.get(adapter, now):
            return True
        if adapter in self._sequences or adapter in self._foreign:
            return not self._joinable
        if len({*self._sequences, *self._foreign, *self._wanted} - {adapter}) < self._most:
            return False
        self._has_waiters = True
        return True

    def clears_at(self, request: AdmissionRequest, now: float) -> float | None:
        at = self._rejected.get(request.adapter, now)
        return at if at > now else None

    def starts_in_s(self, request: AdmissionRequest, ahead: Ahead, now: float) -> float | None:
        """Predicts the end of all sequences of one adapter, and then the turns of those that have
        waited longer, each as long as recent ones. What one turn cannot take of the requests of an
        adapter goes when the others have had theirs."""
        adapter = request.adapter
        if adapter is None:
            return 0.0
        waiting, turns = self._waiting_for_turns(request)
        in_use = adapter in self._sequences or adapter in self._foreign
        before, fitting = ahead.needing.get((self, adapter), 0), 0
        if in_use and self._joinable:
            fitting = min((self._left_beside(each, now) for each in waiting), default=UNLIMITED)
        elif len({*self.in_use(), *self._wanted, *(_adapter_of(each) for each in waiting)}) < (
            self._most
        ):
            fitting = UNLIMITED
        if before < fitting:
            return 0.0
        drained, turn_s = self._drained_in_s(now), self._turn_s
        if not drained and turn_s is None:
            return None
        free_s = sorted(drained.values())
        starts_s = max(0.0, 0.0 if turn_s is None else self.turn_at + turn_s - now, *free_s[:1])
        if turn_s is not None:
            cycles = (before - fitting) // (self._turn_sequences or self._ledger.slots_total)
            if turns and drained.get(adapter, 0.0) > starts_s + turn_s * (turns - 1):
                turns -= 1  # its adapter still runs when theirs have begun
            return starts_s + turn_s * (turns + cycles * (len(waiting) + 1))
        for group in waiting[:turns]:
            service_s = self._service_times.service_s(group.first.request)
            if service_s is None:
                return None
            heapreplace(free_s, starts_s + service_s)
            starts_s = free_s[0]
        return starts_s

    def _waiting_for_turns(self, request: AdmissionRequest) -> tuple[list[Group], int]:
        """Returns the groups of other adapters that wait for a turn, and how many of them have
        theirs before a request."""
        found: dict[str | None, Group] = {}
        before = None
        for service_class in ServiceClass:
            if service_class.rank <= request.service_class.rank:
                for group in self._queues.aside(service_class):
                    if group.constraint is not self:
                        continue
                    adapter = _adapter_of(group)
                    if adapter != request.adapter:
                        found.setdefault(adapter, group)
                    elif service_class is request.service_class:
                        before = len(found)
        return [*found.values()], len(found) if before is None else before

    def _left_beside(self, group: Group, now: float) -> int:
        """Returns how many more sequences of adapters in use may pass a group that waits."""
        slots_total = self._ledger.slots_total
        if now >= group.passable_until(slots_total):
            return 0
        return slots_total - (group.passed if group.turn_at == self.turn_at else 0)

    def _drained_in_s(self, now: float) -> dict[str | None, float]:
        """Returns the seconds until each adapter has no running sequence; empty: unknown."""
        key = now, self._ledger.grants, self._ledger.leased
        if key != self._drained[0]:
            self._drained = key, self._predict_drained(now)
        return self._drained[1]

    def _predict_drained(self, now: float) -> dict[str | None, float]:
        ends: dict[str | None, float] = {}
        for lease in self._ledger.all():
            request = lease.request
            if request is None or request.adapter is None:
                continue
            remaining_s = self._service_times.remaining_s(lease, request, now)
            if remaining_s is None:
                return {}
            ends[request.adapter] = max(ends.get(request.adapter, 0.0), remaining_s)
        return ends

    def begin_epoch(self) -> None:
        self._sequences.clear()
        self._taken.clear()
        self._rejected.clear()
        self._foreign = self._wanted = frozenset()
        self._joinable = True

    def reported(self, report: EngineReport, now: float) -> None:
        self._most = report.max_loras
        self.inactive = not report.max_loras
        if self.inactive:
            return
        # The engine's statistics lag, but nothing else tells the adapters of adopted leases.
        adopted = report.adapters_running if self._ledger.adopted > 0 else frozenset()
        if not report.adapters_foreign <= self._foreign.union(self._sequences):
            self._begin_turn(now)  # another user's
        self._foreign = report.adapters_foreign | adopted
        self._wanted, self._joinable = report.adapters_wanted, report.adapters_joinable
        self._rejected.clear()

    def rejected(self, request: AdmissionRequest | None = None, now: float = 0.0) -> None:
        if request is not None:
            self._rejected[request.adapter] = now + POLL_S

    def granted(self, lease: Lease, request: AdmissionRequest, now: float) -> None:
        adapter = request.adapter
        if adapter is None:
            return
        if adapter not in self._sequences and adapter not in self._foreign:
            self._begin_turn(now)
        self._sequences[adapter] += lease.cost
        self._taken[adapter] += lease.cost

    def _begin_turn(self, now: float) -> None:
        """An adapter came into use."""
        if self._has_waiters:
            turn_s = min(now - self.turn_at, _MAX_TURN_S)
            before_s = turn_s if self._turn_s is None else self._turn_s
            self._turn_s = before_s + _TURN_WEIGHT * (turn_s - before_s)
        self.turn_at, self._has_waiters = now, False

    def ended(self, request: AdmissionRequest, now: float) -> None:
        adapter = request.adapter
        if adapter is not None:
            self._sequences[adapter] -= request.cost
            if not self._sequences[adapter]:
                del self._sequences[adapter]
                self._end_turn(adapter)

    def _end_turn(self, adapter: str) -> None:
        """The last sequence of an adapter ended."""
        taken, groups = self._taken.pop(adapter, 0), chain(*map(self._queues.aside, ServiceClass))
        if any(_adapter_of(each) == adapter for each in groups):
            before = self._turn_sequences or taken
            self._turn_sequences = before + _TURN_WEIGHT * (taken - before)

    def text(self) -> str:
        has = ", ".join(sorted(self.in_use())) or "none now"
        return f"its LoRA adapter: the engine runs {self._most} at once, and has {has}"


def _adapter_of(group: Group) -> str | None:
    return group.first.request.adapter

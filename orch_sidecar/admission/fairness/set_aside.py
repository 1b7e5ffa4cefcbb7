"""Keeps queued requests that others pass, and decides how many may pass.

Pure: times are seconds of a monotonic clock. A request that waits for something which only some
need (`Scope.REQUEST`) is set aside: those behind it go on, and it goes as soon as it can, before
all that are in line. Those that need the same form a group, and go in their order. A request that
passes a group and uses what it waits for prolongs its wait. So after as many such sequences as the
engine has slots, or after PASSED_S, no request passes the group's first one. A group
keeps its turn for as long, so that groups alternate in batches. Of several groups that have waited
long enough, the order of dispatch decides, then which has waited longest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from orch_sidecar.admission.constraints.constraint import Constraint
from orch_sidecar.admission.types import AdmissionRequest, QueuedRequest
from vllm_plugin.contracts.lease_protocol import PASSED_S


@dataclass(slots=True)
class Group:
    """Requests that wait for the same. `since`: when its first request became the first. `passed`:
    sequences that have gone before it since then, in the turn that began at `turn_at`, and that
    prolong its wait."""

    constraint: Constraint
    since: float
    turn_at: float
    passed: int = 0
    cost: int = 0  # sequences
    queued: OrderedDict[str, QueuedRequest] = field(default_factory=OrderedDict)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return iter(self.queued.values())

    @property
    def first(self) -> QueuedRequest:
        return next(iter(self.queued.values()))

    def passed_by(self, request: AdmissionRequest) -> None:
        """Counts a request that went before it."""
        if self.turn_at != self.constraint.turn_at:
            self.turn_at, self.passed = self.constraint.turn_at, 0
        self.passed += request.cost

    def passable_until(self, slots_total: int) -> float:
        """Returns until when others may pass it."""
        turn_at = self.constraint.turn_at
        if self.passed >= slots_total and turn_at == self.turn_at:
            return float("-inf")
        return max(self.since, turn_at) + PASSED_S


class SetAside:
    """The groups of one class that are set aside, the one that has waited longest first."""

    def __init__(self) -> None:
        self.size = 0  # requests
        self.cost = 0  # sequences
        self._groups: dict[tuple[Constraint, Hashable], Group] = {}
        self._group_of: dict[str, tuple[Constraint, Hashable]] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    @property
    def groups(self) -> int:
        return len(self._groups)

    def add(self, queued: QueuedRequest, constraint: Constraint, now: float) -> None:
        """Sets a request aside."""
        key = constraint, constraint.group(queued.request)
        group = self._groups.setdefault(key, Group(constraint, now, constraint.turn_at))
        group.queued[queued.ticket] = queued
        self._group_of[queued.ticket] = key
        self.size += 1
        self.cost += queued.request.cost
        group.cost += queued.request.cost

    def remove(self, queued: QueuedRequest) -> bool:
        """Removes a request. Returns whether it was set aside."""
        key = self._group_of.pop(queued.ticket, None)
        if key is None:
            return False
        group = self._groups[key]
        del group.queued[queued.ticket]
        group.cost -= queued.request.cost
        if not group.queued:
            del self._groups[key]
        self.size -= 1
        self.cost -= queued.request.cost
        return True

    def granted(self, request: AdmissionRequest, now: float) -> None:
        """Begins the turn of a request's group anew: it got its slots. Counts it at the others."""
        for key, group in list(self._groups.items()):
            constraint, name = key
            if not constraint.is_used_by(request):
                continue
            if constraint.group(request) == name:
                group.passed, group.since = 0, now
                self._groups[key] = self._groups.pop(key)  # behind the others
            else:
                group.passed_by(request)

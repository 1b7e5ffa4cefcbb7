"""Queued requests that others pass, and how many may.

Pure: times are seconds of a monotonic clock. A request that waits for something which only some
need (`Scope.REQUEST`) is set aside: those behind it go on, and it goes as soon as it can, before
all that is in line. Those that need the same form a group, and go in their order. What passes a
group and takes something of what it waits for may prolong its wait, so that ends: after as many
sequences as the engine has slots, or PASSED_S, none of these goes before the group's first. A
group whose turn it is keeps it for as long, so that groups which alternate do so in batches. Of
several that have waited for long enough the order of dispatch decides, then who waits longest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from orch_sidecar.admission.constraints.constraint import Constraint
from orch_sidecar.admission.types import AdmissionRequest, QueuedRequest
from vllm_plugin.contracts.lora import PASSED_S


@dataclass(slots=True)
class Group:
    """Requests that wait for the same. `since`: when its first came to be first; `passed`:
    sequences that have gone before it since then, and since the turn at `turn_at` began, and
    prolong its wait."""

    constraint: Constraint
    since: float
    turn_at: float
    passed: int = 0
    queued: OrderedDict[str, QueuedRequest] = field(default_factory=OrderedDict)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return iter(self.queued.values())

    @property
    def first(self) -> QueuedRequest:
        return next(iter(self.queued.values()))

    def passes(self, request: AdmissionRequest) -> None:
        """A request went before it."""
        if self.turn_at != self.constraint.turn_at:
            self.turn_at, self.passed = self.constraint.turn_at, 0
        self.passed += request.cost

    def ends_at(self, slots_total: int) -> float:
        """Until when others may pass it."""
        turn_at = self.constraint.turn_at
        if self.passed >= slots_total and turn_at == self.turn_at:
            return float("-inf")
        return max(self.since, turn_at) + PASSED_S


class SetAside:
    """The requests of one class that are set aside, the group that has waited longest first."""

    def __init__(self) -> None:
        self.size = 0  # requests
        self.cost = 0  # sequences
        self._groups: dict[tuple[Constraint, Hashable], Group] = {}
        self._group_of: dict[str, tuple[Constraint, Hashable]] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def add(self, queued: QueuedRequest, constraint: Constraint, now: float) -> None:
        """Sets a request aside."""
        key = constraint, constraint.group(queued.request)
        group = self._groups.setdefault(key, Group(constraint, now, constraint.turn_at))
        group.queued[queued.ticket] = queued
        self._group_of[queued.ticket] = key
        self.size += 1
        self.cost += queued.request.cost

    def remove(self, queued: QueuedRequest) -> bool:
        """Removes a request. Returns whether it was set aside."""
        key = self._group_of.pop(queued.ticket, None)
        if key is None:
            return False
        group = self._groups[key]
        del group.queued[queued.ticket]
        if not group.queued:
            del self._groups[key]
        self.size -= 1
        self.cost -= queued.request.cost
        return True

    def gone(self, request: AdmissionRequest, now: float) -> None:
        """A request got its slots: of a group, whose turn begins again, or before one."""
        for key, group in list(self._groups.items()):
            constraint, name = key
            if not constraint.is_used_by(request):
                continue
            if constraint.group(request) == name:
                group.passed, group.since = 0, now
                self._groups[key] = self._groups.pop(key)  # the others are before it
            else:
                group.passes(request)

"""Queued requests that others pass, and how many may.

Pure: times are seconds of a monotonic clock. A request that waits for something which only some
need (`Scope.REQUEST`) is set aside: those behind it go on, and it goes as soon as it can, before
all that is in line. Those that need the same form a group, and go in their order. What passes a
group and takes something of what it waits for may prolong its wait, so that ends: after as many
sequences as the engine has slots, or PASSED_S, none of these goes before the group's first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final

from orch_sidecar.admission.constraints.constraint import Constraint
from orch_sidecar.admission.fairness.queued_request import QueuedRequest
from orch_sidecar.admission.types import AdmissionRequest

# A fraction of what users wait for a first token, and several times what an answer takes, so that
# what alternates does so in batches.
PASSED_S: Final = 2.0


@dataclass(slots=True)
class Group:
    """Requests that wait for the same. `since`: when its first came to be first; `passed`:
    sequences that have gone before it since then, and prolong its wait."""

    constraint: Constraint
    since: float
    passed: int = 0
    queued: OrderedDict[str, QueuedRequest] = field(default_factory=OrderedDict)

    def __iter__(self) -> Iterator[QueuedRequest]:
        return iter(self.queued.values())

    def ends_at(self, slots_total: int) -> float:
        """Until when others may pass it."""
        return float("-inf") if self.passed >= slots_total else self.since + PASSED_S


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
        group = self._groups.setdefault(key, Group(constraint, now))
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
            if not constraint.takes(request):
                continue
            if constraint.group(request) == name:
                group.passed, group.since = 0, now
                self._groups[key] = self._groups.pop(key)  # the others are before it
            else:
                group.passed += request.cost

    def keeps(self, request: AdmissionRequest, slots_total: int, now: float) -> Constraint | None:
        """What a request has to wait for that others have waited for long enough; None: it may
        pass."""
        for (constraint, name), group in self._groups.items():
            if (
                constraint.takes(request)
                and now >= group.ends_at(slots_total)
                and constraint.group(request) != name
            ):
                return constraint
        return None

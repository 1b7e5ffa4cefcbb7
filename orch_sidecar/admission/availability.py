"""Decides whether an engine takes requests: until when it is drained, and when it will be back.

Pure: times are seconds of a monotonic clock. A draining pool refuses new requests and completes
those it has. An operator's order stands until an operator resumes. An order that comes with the
stop of an engine concerns that engine only: what stops it (a kubelet, for a failed probe or a
deleted pod) may start another in its place while this sidecar keeps running, and nothing would
resume the pool. So that order ends with the first report of another epoch.

An absence has several phases: the state is stale, the engine is down, then it starts. A phase is
expected to last as long as the last time; if it has lasted longer, or is the first of its kind, it
is expected to last as long again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from orch_sidecar.api.refusal import Reason, Refusal

# How long a first absence is expected to last: clients without a hint retry after about as long.
FIRST_ABSENCE_S: Final = 1.0
# Clients are asked to come again within this time, however long the absence lasts.
MAX_RETRY_S: Final = 60.0


class OrderedBy(StrEnum):
    """The origin of a drain, the weakest first."""

    ENGINE_STOP = "engine_stop"
    OPERATOR = "operator"
    SHUTDOWN = "shutdown"  # of this sidecar: it never ends


_STRENGTH = {order: strength for strength, order in enumerate(OrderedBy)}


@dataclass(frozen=True, slots=True)
class Drain:
    """A drain in progress. `since_s`: Unix time."""

    ordered_by: OrderedBy
    since_s: float

    @property
    def ends_with_engine(self) -> bool:
        """Whether the report of another engine epoch ends it."""
        return self.ordered_by is OrderedBy.ENGINE_STOP


def stronger(current: Drain | None, ordered: Drain) -> Drain:
    """Returns the stronger of the current drain and an ordered one; of equal ones the first."""
    if current is None or _STRENGTH[ordered.ordered_by] > _STRENGTH[current.ordered_by]:
        return ordered
    return current


def after_restart(current: Drain | None) -> Drain | None:
    """Returns the drain that remains when an engine of another epoch reports."""
    return None if current is None or current.ends_with_engine else current


class Absence:
    """The absences of one engine, or of a pool's addresses, in which it takes no requests.

    `expected`: it will be back by itself: it starts, it will go on, or its stop was ordered, as
    that of an engine that is replaced.
    """

    def __init__(
        self,
        now: float = 0.0,
        durations_s: dict[Reason, float] | None = None,
        reason: Reason = Reason.ENGINE_STARTING,
    ) -> None:
        """The engine is absent at first. `durations_s`: of the last absence from the beginning of
        each phase, shared with other engines."""
        self.expected = True
        self._durations_s = {} if durations_s is None else durations_s
        self._since = {reason: now}
        self._reason = reason

    def began(self, reason: Reason, now: float, *, expected: bool | None) -> None:
        """A phase of an absence began. `expected`: None where nothing new is known."""
        if not self._since and expected is None:
            expected = False
        if expected is not None:
            self.expected = expected
        self._since.setdefault(reason, now)
        self._reason = reason

    def ended(self, now: float) -> None:
        """The absence ended: the engine takes requests."""
        for reason, since in self._since.items():
            self._durations_s[reason] = now - since
        self._since.clear()

    def remaining_s(self, now: float) -> float:
        """Returns the expected seconds until the absence ends; 0 without one."""
        since = self._since.get(self._reason)
        if since is None:
            return 0.0
        has_lasted_s = max(0.0, now - since)
        remaining_s = self._durations_s.get(self._reason, 0.0) - has_lasted_s
        return remaining_s if remaining_s > 0 else max(FIRST_ABSENCE_S, has_lasted_s)

    def refusal(self, refusal: Refusal, now: float) -> Refusal:
        """Adds to a refusal when to come again and, if the engine is expected back, the predicted
        start."""
        remaining_s = self.remaining_s(now)
        return replace(
            refusal,
            retry_after_ms=round(1000 * min(remaining_s, MAX_RETRY_S)),
            predicted_start_ms=round(1000 * remaining_s) if self.expected else None,
        )

    def last_duration_s(self, reason: Reason) -> float:
        """Returns how long the last absence lasted from this phase on; 0: there was none."""
        return self._durations_s.get(reason, 0.0)

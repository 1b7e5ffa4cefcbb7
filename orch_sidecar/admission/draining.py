"""Decides what orders a pool to drain, and what ends the drain.

Pure. A draining pool refuses new requests and completes those it has. An operator's order stands
until an operator resumes. An order that comes with the stop of an engine concerns that engine
only: what stops it (a kubelet, for a failed probe or a deleted pod) may start another in its
place while this sidecar keeps running, and nothing would resume the pool. So that order ends with
the first report of another epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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

"""Who ordered a pool to drain, since when, and what ends it.

Pure. A pool that drains refuses new requests and finishes those it has. An operator's order stands
until an operator resumes. An order that comes with the stop of an engine is about that engine only:
what stops it (a kubelet, for a failed probe as for a deleted pod) may start another in its place
while this sidecar lives on, and nobody would resume then. So it ends with the first report of
another epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OrderedBy(StrEnum):
    """Who ordered a drain, the weakest order first."""

    ENGINE_STOP = "engine_stop"
    OPERATOR = "operator"
    SHUTDOWN = "shutdown"  # of this sidecar: for good


_STRENGTH = {order: strength for strength, order in enumerate(OrderedBy)}


@dataclass(frozen=True, slots=True)
class Drain:
    """A drain that is under way. `since_s`: Unix time."""

    ordered_by: OrderedBy
    since_s: float

    @property
    def ends_with_engine(self) -> bool:
        """Whether the report of another engine epoch ends it."""
        return self.ordered_by is OrderedBy.ENGINE_STOP


def stronger(current: Drain | None, ordered: Drain) -> Drain:
    """The drain after another order: the stronger one, of two alike the first."""
    if current is None or _STRENGTH[ordered.ordered_by] > _STRENGTH[current.ordered_by]:
        return ordered
    return current


def of_next_engine(current: Drain | None) -> Drain | None:
    """What is left of a drain once another engine epoch reports."""
    return None if current is None or current.ends_with_engine else current

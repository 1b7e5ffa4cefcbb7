"""Derives from the times of requests how they arrived: what no span states.

Pure. In a closed loop each request but the first of each client follows the end of another one
without a pause; by a schedule it does not. What a few requests show is by chance, and unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from orch_sidecar.tools.facts.labels.figures import CompletedRequest
from orch_sidecar.tools.facts.labels.intervals import most
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label

# Fewer requests that follow others, or fewer in all, show no kind of arrivals.
LEAST: Final = 10
# Requests that all arrive within this share of the window were sent at once.
_AT_ONCE_SHARE: Final = 0.1
# A client sends its next request within this share of an answer's time, or these seconds.
_PAUSE_SHARE: Final = 0.05
_PAUSE_S: Final = 0.05
# Of a closed loop some clients pause longer, or leave before the others.
_CLOSED_SHARE: Final = 0.9


def arrivals_of(requests: Sequence[CompletedRequest], label: Label) -> Arrivals | None:
    """Returns how requests arrived; None where they do not show it, and where the label implies
    it."""
    if label is Label.SINGLE_STREAM or len(requests) < LEAST:
        return None
    arrived = sorted(each.arrived_s for each in requests)
    ended = sorted(each.ended_s for each in requests)
    if arrived[-1] - arrived[0] <= _AT_ONCE_SHARE * (ended[-1] - arrived[0]):
        return Arrivals.AT_ONCE
    clients = most(each.in_flight for each in requests)
    follow = [arrived[number] - ended[number - clients] for number in range(clients, len(arrived))]
    if len(follow) < LEAST:
        return None
    pause_s = max(_PAUSE_S, _PAUSE_SHARE * median(each.latency_s for each in requests))
    if sum(each <= pause_s for each in follow) >= _CLOSED_SHARE * len(follow):
        return Arrivals.CLOSED_LOOP
    return Arrivals.OPEN_LOOP if label is Label.BATCHED_ONLINE else None

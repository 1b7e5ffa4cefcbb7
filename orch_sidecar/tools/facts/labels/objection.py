"""The reasons why a measurement earns no label, or makes no row.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a measurement makes no row."""

    UNKNOWN_LABEL = "unknown_label"
    NOTHING_SERVED = "nothing_served"
    NOT_ENDED = "not_ended"
    ENGINE_NOT_TRACED = "engine_not_traced"
    NOT_COUNTED = "not_counted"  # the engine's spans lack its counters
    NO_STEPS = "no_steps"
    CONTRADICTION = "contradiction"
    WRONG_LABEL = "wrong_label"
    WRONG_SLOTS = "wrong_slots"
    COALESCED = "coalesced"
    DIVIDED = "divided"
    BATCH_ABOVE_ONE = "batch_above_one"
    OVERLAP = "overlap"
    NEVER_BATCHED = "never_batched"
    ONE_BY_ONE = "one_by_one"
    MOSTLY_ALONE = "mostly_alone"
    TRICKLE = "trickle"  # offline requires all the work at once, or slots that are never free
    BATCH_NOT_FULL = "batch_not_full"
    ONLINE_TRAFFIC = "online_traffic"
    OTHER_TRAFFIC = "other_traffic"
    UNSEEN_TRAFFIC = "unseen_traffic"
    UNTRACED_REQUESTS = "untraced_requests"
    UNTRACED_SEQUENCES = "untraced_sequences"
    ENGINE_CHANGED = "engine_changed"
    NOT_SAID = "not_said"  # neither spans nor options have a value that a row needs
    UNSOUND_ROW = "unsound_row"


@dataclass(frozen=True, slots=True)
class Objection:
    """One reason, and what was observed."""

    reason: Reason
    detail: str


def count_requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"

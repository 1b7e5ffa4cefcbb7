"""What happened in the cluster: the record that a test reads order from. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class What(StrEnum):
    """Everything that is recorded."""

    STARTED = "started"
    STARTUP_PASSED = "startup-passed"
    UNHEALTHY = "unhealthy"  # startup or liveness gave up: the container is killed
    PRE_STOP_BEGAN = "pre-stop-began"
    PRE_STOP_ENDED = "pre-stop-ended"
    TERM = "term"
    KILL = "kill"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Event:
    """One entry, in the order in which they happened."""

    pod: str
    container: str
    what: What
    detail: str = ""

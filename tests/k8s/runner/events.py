"""What happened in the cluster and when: the record that a test reads order from. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class What(StrEnum):
    """Everything that is recorded. Pod-wide events carry no container."""

    POD_CREATED = "pod-created"
    POD_READY = "pod-ready"
    POD_NOT_READY = "pod-not-ready"
    POD_DELETION = "pod-deletion"
    POD_GONE = "pod-gone"
    POD_WAITING = "pod-waiting"  # its volumes or sandbox cannot be made yet; the detail says why
    STARTED = "started"
    NOT_STARTED = "not-started"  # config error, or its root could not be made; retried
    STARTUP_PASSED = "startup-passed"
    READY = "ready"
    NOT_READY = "not-ready"
    UNHEALTHY = "unhealthy"  # startup or liveness gave up: the container is killed
    PRE_STOP_BEGAN = "pre-stop-began"
    PRE_STOP_ENDED = "pre-stop-ended"
    TERM = "term"
    KILL = "kill"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Event:
    """One entry. `at_s` is `time.monotonic()` of the test process."""

    at_s: float
    pod: str
    container: str | None
    what: What
    detail: str = ""

    def __str__(self) -> str:
        place = f"{self.pod}/{self.container}" if self.container else self.pod
        return f"{self.at_s:.3f} {place} {self.what} {self.detail}".rstrip()

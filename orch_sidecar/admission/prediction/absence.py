"""Predicts when an engine that takes no requests will take some again.

Pure: times are seconds of a monotonic clock. An engine is away in one way after the other: its
state is stale, it is down, then it starts. What is left of a way is learned from the last time; if
that is over, or there was none, it lasts as long again as it has lasted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from orch_sidecar.api.refusal import Reason, Refusal

# Before anything is known of it: as long as a client waits that is told nothing.
FIRST_ABSENCE_S: Final = 1.0
# Clients are asked to come again within that, however long it lasts.
MAX_RETRY_S: Final = 60.0


class Absence:
    """The times in which one engine, or one address after the other of a pool, takes no requests.

    `expected`: whether it will be back without anybody doing something: it starts, it will go on,
    or its stop was ordered, as that of an engine which is replaced.
    """

    def __init__(
        self,
        now: float = 0.0,
        lasted_s: dict[Reason, float] | None = None,
        reason: Reason = Reason.ENGINE_STARTING,
    ) -> None:
        """It begins away, for that reason. `lasted_s`: how long it was away from the beginning of
        each way, learned together with others."""
        self.expected = True
        self._lasted_s = {} if lasted_s is None else lasted_s
        self._since = {reason: now}
        self._reason = reason

    def away(self, reason: Reason, now: float, *, expected: bool | None) -> None:
        """It is away for that. `expected`: None where nothing new is known of that."""
        if not self._since and expected is None:
            expected = False
        if expected is not None:
            self.expected = expected
        self._since.setdefault(reason, now)
        self._reason = reason

    def back(self, now: float) -> None:
        """It takes requests."""
        for reason, since in self._since.items():
            self._lasted_s[reason] = now - since
        self._since.clear()

    def remaining_s(self, now: float) -> float:
        """Seconds until it is back; 0 if it is not away."""
        since = self._since.get(self._reason)
        if since is None:
            return 0.0
        has_lasted_s = max(0.0, now - since)
        remaining_s = self._lasted_s.get(self._reason, 0.0) - has_lasted_s
        return remaining_s if remaining_s > 0 else max(FIRST_ABSENCE_S, has_lasted_s)

    def refusal(self, refusal: Refusal, now: float) -> Refusal:
        """Adds to the refusal of a request when to come again, and if it is expected back also that
        a request would start then."""
        remaining_s = self.remaining_s(now)
        return replace(
            refusal,
            retry_after_ms=round(1000 * min(remaining_s, MAX_RETRY_S)),
            predicted_start_ms=round(1000 * remaining_s) if self.expected else None,
        )

    def last_s(self, reason: Reason) -> float:
        """How long it was away the last time, from when this began; 0: never."""
        return self._lasted_s.get(reason, 0.0)

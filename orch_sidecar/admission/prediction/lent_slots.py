"""Predicts when queued bulk requests get slots beside interactive traffic.

Pure: times are seconds of a monotonic clock. Interactive requests that nobody knows yet will go
before a queued bulk one, so the slots that come free are not all for those that are queued: beside
interactive traffic bulk requests take their slots from each other, and have as many as of late.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from orch_sidecar.admission.prediction.schedule import Schedule

# The slots are averaged over so long, and at least so long. Interactive requests come and go in
# waves of half a minute, for which a bulk one waits: over less than one of them the average is that
# of a crest or of a trough.
WINDOW_S: Final = 60.0
MIN_WINDOW_S: Final = 1.0
_SAMPLE_S: Final = 0.25

# Of a predicted start: the part that is by the mean rate of starts. The rest is by the ends of the
# requests in the slots, which are uncertain where their lengths are.
RATE_WEIGHT: Final = 0.25


class SlotAverage:
    """The slots that the requests of a class had on average, while others waited for some."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()  # slot-seconds in all, by then
        self._began_at = 0.0

    def recent_average(self, slot_s: float, waiting: bool, now: float) -> float | None:
        """The recent average, to be called when a request is queued; None: unknown yet.

        `slot_s`: slot-seconds in all. `waiting`: others are queued; else it is unknown from now on,
        for requests had as many slots as they asked for.
        """
        samples = self._samples
        restarted = bool(samples) and slot_s < samples[-1][1] - 1.0  # more than is rounded
        if restarted or not waiting:
            samples.clear()
        if not samples:
            self._began_at = now
        # At first only the later half counts: before others waited, requests had other slots.
        window_s = min(WINDOW_S, (now - self._began_at) / 2)
        if not samples or now - samples[-1][0] >= _SAMPLE_S:
            samples.append((now, slot_s))
        while len(samples) > 1 and now - samples[1][0] >= window_s:
            samples.popleft()
        since, before = samples[0]
        return None if now - since < MIN_WINDOW_S else (slot_s - before) / (now - since)


class LentSlots:
    """The slots of bulk requests beside interactive traffic, in which queued ones are placed."""

    def __init__(
        self, schedule: Schedule, recent_average: float, slower: float, service_s: float, cost: int
    ) -> None:
        """`schedule`: of the slots that bulk requests have now, in seconds of decoding; with the
        prompts that the engine reads meanwhile these last `slower` times as long.
        `recent_average`: slots that they had on average. `service_s`: for how long a sequence has
        its slot. `cost`: slots that are needed at least.
        """
        # If they have none, one comes free in the time for which one is lent.
        self.schedule = schedule.with_slots(max(1, cost), service_s / slower)
        self._slots = len(self.schedule)
        self._recent_average = recent_average
        self._slower = slower
        self._service_s = service_s

    def start_s(self, cost: int, ahead: int) -> float | None:
        """Seconds until a request gets its slots, behind those of the schedule: `ahead` queued
        sequences. None: there are fewer slots."""
        decoding_s = self.schedule.start(cost)
        if decoding_s is None:
            return None
        by_ends = decoding_s * self._slower * self._slots  # slot-seconds
        by_rate = (ahead + cost) * self._service_s
        return (by_ends + RATE_WEIGHT * (by_rate - by_ends)) / self._recent_average

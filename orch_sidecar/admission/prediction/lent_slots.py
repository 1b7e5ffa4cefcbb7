"""Predicts when queued bulk requests get slots beside interactive traffic.

Pure: times are seconds of a monotonic clock. Interactive requests that have yet to arrive will go
before a queued bulk one, so that not all slots that come free are for queued requests. Therefore
bulk requests are predicted to get slots only from each other, and to keep their recent number.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from orch_sidecar.admission.prediction.schedule import Schedule

# The longest and the shortest time over which slots are averaged. Interactive requests come and go
# in waves of half a minute: a shorter average is that of a crest or of a trough.
WINDOW_S: Final = 60.0
MIN_WINDOW_S: Final = 1.0
_SAMPLE_S: Final = 0.25

# The weight of the mean rate of starts in a prediction. The rest comes from the ends of running
# requests, which are as uncertain as their lengths.
RATE_WEIGHT: Final = 0.25


class SlotAverage:
    """The mean slots of the requests of a class while others waited for some."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()  # times, and slot-seconds until then
        self._began_at = 0.0

    def recent_average(self, slot_s: float, waiting: bool, now: float) -> float | None:
        """Returns the recent average, and takes a sample; None: not known yet.

        `slot_s`: all slot-seconds so far. `waiting`: others are queued; if not, sampling begins
        anew, because requests have as many slots as they ask for.
        """
        samples = self._samples
        restarted = bool(samples) and slot_s < samples[-1][1] - 1.0  # more than a rounding error
        if restarted or not waiting:
            samples.clear()
        if not samples:
            self._began_at = now
        # At first only the later half counts: before others waited, requests had more slots.
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
        self, schedule: Schedule, average: float, slowdown: float, service_s: float, cost: int
    ) -> None:
        """`schedule`: of the slots that bulk requests have now, in seconds of decoding; with the
        prompts that the engine reads meanwhile these last `slowdown` times as long. `average`: the
        mean slots of bulk requests. `service_s`: for how long a sequence has its slot. `cost`: the
        fewest slots that are needed.
        """
        # If bulk requests have no slot, one comes free within the time of one sequence.
        self.schedule = schedule.with_slots(max(1, cost), service_s / slowdown)
        self._slots = len(self.schedule)
        self._average = average
        self._slowdown = slowdown
        self._service_s = service_s

    def start_s(self, cost: int, ahead: int) -> float | None:
        """Returns the seconds until a request gets its slots behind the `ahead` queued sequences
        that are in the schedule. None: there are fewer slots."""
        decoding_s = self.schedule.start(cost)
        if decoding_s is None:
            return None
        by_ends = decoding_s * self._slowdown * self._slots  # slot-seconds
        by_rate = (ahead + cost) * self._service_s
        return (by_ends + RATE_WEIGHT * (by_rate - by_ends)) / self._average

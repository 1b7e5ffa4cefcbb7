"""Predicts when slots come free: from the ends of running requests, or from the recent rate.

Pure: times are seconds of a monotonic clock. A `Schedule` is in seconds of decoding from now; the
prompts that the engine reads meanwhile are counted apart, in its `prompt_tokens`: they delay all
slots.

Where there is interactive traffic, requests that have yet to arrive will go before a queued bulk
one, so that not all slots that come free are for queued requests. Therefore bulk requests are
predicted to get slots only from each other, and to keep their recent number (`LentSlots`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from math import ceil
from typing import Final

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.service_time import ServiceTimes
from orch_sidecar.admission.types import AdmissionRequest, EndedLease
from vllm_plugin.contracts.profile import IDLE, ServiceClass

# The ends of running requests are predicted again after this time or, while only few leases run,
# after any change.
MAX_AGE_S: Final = 0.02
MAX_FRESH_LEASES: Final = 32

# An abort takes effect after the current step, and is reported after the next one.
ABORT_STEPS: Final = 2
REPORT_DELAY_S: Final = 0.02

# The longest and the shortest time over which slots are averaged. Interactive requests come and go
# in waves of half a minute: a shorter average is that of a crest or of a trough.
WINDOW_S: Final = 60.0
MIN_WINDOW_S: Final = 1.0
_SAMPLE_S: Final = 0.25
# Enough releases for a stable rate, recent enough to follow the load.
WINDOW_RELEASES: Final = 64

# The weight of the mean rate of starts in a prediction for bulk requests. The rest comes from the
# ends of running requests, which are as uncertain as their lengths.
RATE_WEIGHT: Final = 0.25

DEFAULT_RETRY_MS: Final = 1000  # before anything was measured
MIN_RETRY_MS: Final = 50
# With jitter of a quarter, below what clients heed (`LONGEST_RETRY_MS` of api.refusal).
MAX_RETRY_MS: Final = 47_000


class Schedule:
    """The predicted use of an engine's slots: a heap of the times at which they come free. A
    request takes the earliest ones and frees them at its predicted end."""

    def __init__(self, free_in_s: Iterable[float], prompt_tokens: float = 0.0) -> None:
        self._free = sorted(free_in_s)  # a sorted list is a heap
        self.prompt_tokens = prompt_tokens

    def __len__(self) -> int:
        return len(self._free)

    def copy(self, *, without: int = 0) -> Schedule:
        """Returns a copy without the first slots to come free, which are reserved for others."""
        return Schedule(sorted(self._free)[without:], self.prompt_tokens)

    def with_slots(self, least: int, free_in_s: float) -> Schedule:
        """Returns a copy with `least` slots or more; added ones come free after `free_in_s`."""
        added = [free_in_s] * (least - len(self._free))
        return Schedule(self._free + added, self.prompt_tokens)

    def with_share(self, share: float) -> Schedule:
        """Returns a copy with this share of the slots: at 1/2 the second, the fourth, and so on, in
        the order in which they come free."""
        free = sorted(self._free)
        last, kept = len(free) - 1, int(len(free) * share)
        # Rounding must not lead beyond the last one: 11 / (22 / 30) is above 15.
        at = (min(last, ceil((i + 1) / share) - 1) for i in range(kept))
        return Schedule((free[i] for i in at), self.prompt_tokens)

    def place(self, cost: int, service_s: float) -> float | None:
        """Takes `cost` slots for `service_s`. Returns the start; None: there are too few slots."""
        if cost > len(self._free):
            return None
        start = 0.0
        for _ in range(cost):
            start = heapq.heappop(self._free)
        for _ in range(cost):
            heapq.heappush(self._free, start + service_s)
        return start

    def fill(self, count: int, service_s: float) -> None:
        """Places `count` equal sequences one by one, in the time of sorting the slots.

        Each slot takes as many as fit below the level to which all the work would fill the slots;
        the few that are left take the slots that are free first.
        """
        free = self._free
        if not free or count <= 0 or service_s <= 0:
            return
        free.sort()
        level, total = 0.0, count * service_s
        for used, at in enumerate(free, 1):
            total += at
            level = total / used
            if used == len(free) or level <= free[used]:
                break
        rest = count
        for slot, at in enumerate(free):
            fitting = int((level - at) / service_s)
            if fitting <= 0:
                continue
            free[slot] = at + fitting * service_s
            rest -= fitting
        heapq.heapify(free)
        for _ in range(rest):
            heapq.heapreplace(free, free[0] + service_s)

    def start(self, cost: int) -> float | None:
        """Returns when `cost` slots will be free, without taking them."""
        if cost > len(self._free):
            return None
        return self._free[0] if cost == 1 else heapq.nsmallest(cost, self._free)[-1]


class FreedSlots:
    """When the slots of one engine come free, as its running requests end."""

    def __init__(self, ledger: Ledger, times: ServiceTimes) -> None:
        self._ledger, self._times = ledger, times
        # By class (None: interactive and bulk): when the ends of running sequences were predicted,
        # and the seconds of decoding to each; None: unknown.
        self._ends: dict[ServiceClass | None, tuple[float, list[float] | None]] = {}
        self._changed = True
        self._grants = 0  # the ledger's count when the ends were predicted last

    def invalidate(self) -> None:
        """Has the ends predicted again: a request ended, or is about to."""
        self._changed = True

    def schedule(self, now: float, free: int, only: ServiceClass | None) -> Schedule | None:
        """Predicts when slots come free: `free` ones now, the others as running requests end.

        `only`: the class whose ends count; None: interactive and bulk ones, for which slots of idle
        requests are free. Returns None if the ends are unknown.
        """
        ledger = self._ledger
        if (
            self._changed or ledger.grants != self._grants
        ) and ledger.lease_count <= MAX_FRESH_LEASES:
            self._ends.clear()
        self._changed, self._grants = False, ledger.grants
        predicted_at, ends = self._ends.get(only, (float("-inf"), None))
        if now - predicted_at > MAX_AGE_S:
            ends = self._predict_ends(now, only)
            self._ends[only] = now, ends
        if ends is None:
            return None
        running = ledger.leased - ledger.idle if only is None else ledger.of(only)
        ended = max(0, len(ends) - running)  # since then: those expected to end first
        return Schedule([0.0] * free + ends[ended:], self._times.prompts.unread(now))

    def start_s(self, schedule: Schedule, cost: int) -> float | None:
        """Returns the seconds until a request behind a schedule gets its slots; None: never."""
        decoding_s = schedule.start(cost)
        if decoding_s is None:
            return None
        return self._times.wall_s(decoding_s, schedule.prompt_tokens)

    def fill(self, schedule: Schedule, prompt_work: float, output: float, sequences: int) -> None:
        """Puts equal sequences behind the others, if their length is known.

        `prompt_work`: the prompt tokens of their requests, times the sequences of each. `output`:
        the expected tokens of all.
        """
        token_s = self._times.token_s()
        if token_s is not None:
            schedule.fill(sequences, self._times.slowness.factor * output * token_s / sequences)
            schedule.prompt_tokens += prompt_work

    def place(self, schedule: Schedule, request: AdmissionRequest) -> None:
        """Puts a request behind the others, if its length is known."""
        token_s = self._times.token_s()
        tokens = self._times.lengths.expected(request.service_class, request.max_tokens)
        if token_s is not None and tokens is not None:
            schedule.place(request.cost, self._times.slowness.factor * tokens * token_s)
            schedule.prompt_tokens += request.prompt_tokens

    def _predict_ends(self, now: float, only: ServiceClass | None) -> list[float] | None:
        ends: list[float] = []
        for lease in self._ledger.all():
            request = lease.request
            if request is None or (only is not None and request.service_class is not only):
                continue
            if only is None and request.service_class is IDLE:
                continue
            if lease.closing:
                remaining_s = self._confirmed_in_s()
            else:
                remaining_s = self._times.decoding_s(lease, request, now)
            if remaining_s is None:
                return None
            ends += [remaining_s] * request.cost
        return sorted(ends)

    def _confirmed_in_s(self) -> float | None:
        """Returns the seconds until the engine confirms the end of an aborted request."""
        step_s = self._times.step_s(0)
        return None if step_s is None else ABORT_STEPS * step_s + REPORT_DELAY_S


class ReleaseRate:
    """Slots released per second over the recent past."""

    def __init__(self) -> None:
        # When, and how many slots.
        self.releases: deque[tuple[float, int]] = deque(maxlen=WINDOW_RELEASES)

    def released(self, slots: int, now: float) -> None:
        self.releases.append((now, slots))

    def per_second(self, now: float) -> float | None:
        """Returns the slots per second; None until two releases are known."""
        recent = [(at, slots) for at, slots in self.releases if now - at <= WINDOW_S]
        if len(recent) < 2:
            return None
        # The first release starts the clock; the time since the last one counts as well.
        span = max(now - recent[0][0], 1e-3)
        return sum(slots for _, slots in recent[1:]) / span

    def retry_after_ms(self, slots_ahead: float, now: float) -> int:
        """Returns the milliseconds until `slots_ahead` slots come free at the measured rate."""
        rate = self.per_second(now)
        if not rate:
            return DEFAULT_RETRY_MS
        return int(min(max(1000 * slots_ahead / rate, MIN_RETRY_MS), MAX_RETRY_MS))


class ReleaseRates:
    """Slots released per second: of each class, and of all."""

    def __init__(self) -> None:
        self.all = ReleaseRate()
        self._of_class = tuple(ReleaseRate() for _ in ServiceClass)  # by rank

    def learn(self, ended: Iterable[EndedLease]) -> None:
        """Counts the slots of those that the engine served."""
        of_all, of_class = self.all.releases, self._of_class
        for lease, _, served, now in ended:
            if served:
                release = now, lease.cost
                of_all.append(release)
                if lease.request is not None:
                    of_class[lease.request.service_class.rank].releases.append(release)

    def of(self, service_class: ServiceClass) -> ReleaseRate:
        return self._of_class[service_class.rank]


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

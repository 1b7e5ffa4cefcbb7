"""Measures how many slots the requests of a class ask for, served and refused ones alike.

Pure: times are seconds of a monotonic clock. The demand is the arrivals per second, times the slots
of each, times the seconds for which it has them. It is the larger of two means: one over the time
for which a lent slot is gone, and one over the last half second, less its standard error, so that a
change of the load shows within a second and chance does not.

The work of a request is the expected output tokens of all its sequences. The time of a token is
what completed requests took per expected token, so that wrong expectations correct themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, fsum, sqrt
from typing import Final

from orch_sidecar.admission.types import AdmissionRequest

FAST_WINDOW_S: Final = 0.5
UPDATE_EVERY_S: Final = 0.1  # arrivals are added up meanwhile
# Updates of all keys are so rare that they cost less than a thousandth of the time.
UPDATE_EVERY_S_PER_KEY: Final = 1e-3
MIN_KEY_SLOTS: Final = 1e-3  # a key that asks for less is forgotten
# Refusals that are remembered, to tell a retry from a new request.
MAX_REFUSALS: Final = 4096

# Assumed until a request has completed: a second for an answer of common length.
DEFAULT_TOKENS: Final = 128.0
DEFAULT_TOKEN_S: Final = 1 / DEFAULT_TOKENS
DEFAULT_LENT_S: Final = 10.0
_LEARNING_RATE: Final = 0.05


class ServicePace:
    """The time that requests of a class take, learned from those that completed."""

    def __init__(self) -> None:
        self.service_s = 0.0  # the mean of a request
        self.learns_at = float("-inf")  # responses before that are not needed
        self._tokens = 0.0  # the mean of those expected
        self._completed = 0

    @property
    def token_s(self) -> float:
        """Seconds in a slot per expected token."""
        return self.service_s / self._tokens if self._tokens else DEFAULT_TOKEN_S

    def completed(self, expected_tokens: float, elapsed_s: float) -> None:
        """Learns from a request that completed in `elapsed_s`; `expected_tokens`: per sequence."""
        share = _LEARNING_RATE
        if self._completed < 20:  # of the first ones, the plain mean
            self._completed += 1
            share = 1 / self._completed
        self.service_s += share * (elapsed_s - self.service_s)
        self._tokens += share * (expected_tokens - self._tokens)


@dataclass(slots=True)
class _KeyDemand:
    """What the requests of one API key ask for. `work`: since `slow_mean` was updated."""

    weight: float
    work: float = 0.0
    slow_mean: float = 0.0


class Demand:
    """The demand of one class: `slots`, of the `slots_total` of the engine.

    `lent_s`: for how long a slot that is lent to a bulk request is gone.
    """

    def __init__(self) -> None:
        self.pace = ServicePace()
        self.slots = 0.0  # as of the last update
        self.slots_for_idle = 0.0  # as of the last `expect`
        self.slots_total = 0
        self.lent_s = DEFAULT_LENT_S
        self._keys: dict[bytes, _KeyDemand] = {}
        self._keys_updated_at = 0.0
        self._fair_part = 1.0  # of the demand, see `_compute_fair_part`
        self._work = self._squared_work = 0.0  # sums over requests since the last update
        self._slow_mean = self._fast_mean = self._variance = 0.0
        self._updated_at = self._expected_at = 0.0
        # Requests that are not counted yet, without retries, and when they arrived.
        self.arrivals: list[tuple[float, AdmissionRequest]] = []
        # By key and identity: until when a request counts as a retry of a refused one.
        self.retries: dict[tuple[bytes, int], float] = {}

    def count_arrivals(self) -> None:
        """Counts the requests that have arrived, in O(1) each."""
        for at, request in self.arrivals:
            # Otherwise it would count as spread over a pause before it.
            if at - self._updated_at > UPDATE_EVERY_S:
                self._update_averages(at)
            work = request.work
            entry = self._keys.get(request.key)
            if entry is None:
                entry = self._keys[request.key] = _KeyDemand(request.weight)
            entry.weight = request.weight
            entry.work += work
            self._work += work
            self._squared_work += work * work
        self.arrivals.clear()

    def withdrawn(self, request: AdmissionRequest, age_s: float, now: float) -> None:
        """Uncounts a request that arrived `age_s` ago: a limit of its own ended it."""
        self.update(now)
        entry = self._keys.get(request.key)
        if entry is not None:
            work = request.work * exp(-age_s / self.lent_s)
            entry.work -= work
            self._work -= work

    def refused(self, request: AdmissionRequest, until: float, now: float) -> None:
        """Remembers a refused request with an identity, which may come back at `until`.

        It does not count again before that, nor while it would have had its slots: a client that
        repeats a request asks for no more than these.
        """
        if len(self.retries) >= MAX_REFUSALS:
            del self.retries[next(iter(self.retries))]
        served_s = request.work / request.cost * self.pace.token_s
        self.retries[request.key, request.identity] = max(until, now + served_s)

    def is_retry(self, request: AdmissionRequest, now: float) -> bool:
        """Whether a request came back before its Retry-After: it has been counted."""
        until = self.retries.get((request.key, request.identity))
        return until is not None and now < until

    def update(self, now: float) -> float:
        """Updates the means if they are old enough, and returns the demand in slots.

        At most ten times a second; those of the keys, in O(keys), more rarely the more there are.
        """
        if self.arrivals:
            self.count_arrivals()
        if now - self._updated_at >= UPDATE_EVERY_S:
            self._update_averages(now)
        return self.slots

    def expect(self, now: float) -> float:
        """Returns the demand as idle requests see it: what `update` would return, without those
        that have just arrived.

        It changes no mean. A mean depends on when it is updated, and that must not depend on idle
        requests, or others would get their slots at other times than without them.
        """
        if now - self._expected_at >= UPDATE_EVERY_S:
            self._expected_at = now
            self.slots_for_idle = self._slots(*self._means_at(now))
        return self.slots_for_idle

    def _means_at(self, now: float) -> tuple[float, float, float]:
        """Returns the slow mean, the fast one and its variance, with the work since the last
        update."""
        passed_s, work = now - self._updated_at, self._work
        slow_kept, fast_kept = exp(-passed_s / self.lent_s), exp(-passed_s / FAST_WINDOW_S)
        per_s = self.pace.token_s / passed_s
        slow_mean = max(0.0, slow_kept * self._slow_mean + (1 - slow_kept) * per_s * work)
        fast_mean = max(0.0, fast_kept * self._fast_mean + (1 - fast_kept) * per_s * work)
        # The variance of a sum of independent requests is the sum of their squares.
        new = self._squared_work * ((1 - fast_kept) * per_s) ** 2
        return slow_mean, fast_mean, fast_kept * fast_kept * self._variance + new

    def _slots(self, slow_mean: float, fast_mean: float, variance: float) -> float:
        slots = max(slow_mean, fast_mean - sqrt(variance))
        return slots * self._fair_part if slots > self.slots_total else slots

    def _update_averages(self, now: float) -> None:
        means = self._slow_mean, self._fast_mean, self._variance = self._means_at(now)
        self._updated_at = self._expected_at = now
        self._work = self._squared_work = 0.0
        if now - self._keys_updated_at >= UPDATE_EVERY_S_PER_KEY * len(self._keys):
            self._update_keys(self.pace.token_s, now)
        self.slots = self.slots_for_idle = self._slots(*means)
        while self.retries and self.retries[first := next(iter(self.retries))] <= now:
            del self.retries[first]

    def _update_keys(self, token_s: float, now: float) -> None:
        """Updates what each key asks for, and forgets those that ask for nothing."""
        passed_s, self._keys_updated_at = now - self._keys_updated_at, now
        kept = exp(-passed_s / self.lent_s)
        for key in list(self._keys):
            entry = self._keys[key]
            asked = (1 - kept) * token_s / passed_s * entry.work
            entry.slow_mean, entry.work = max(0.0, kept * entry.slow_mean + asked), 0.0
            if entry.slow_mean < MIN_KEY_SLOTS:
                del self._keys[key]
        self._fair_part = self._compute_fair_part()

    def _compute_fair_part(self) -> float:
        """Computes the part of the demand that is left if no key counts for more than its weight's
        share of the slots: one key must not displace the bulk requests of all."""
        asked = fsum(entry.slow_mean for entry in self._keys.values())
        if len(self._keys) < 2 or not asked:
            return 1.0
        weights = fsum(entry.weight for entry in self._keys.values())
        counted = fsum(
            min(entry.slow_mean, self.slots_total * entry.weight / weights)
            for entry in self._keys.values()
        )
        return counted / asked

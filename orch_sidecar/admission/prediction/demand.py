"""Measures how many slots the requests of a class ask for, whatever becomes of them.

Pure: times are seconds of a monotonic clock. The demand is the arrivals per second, times the
slots that each takes, times the seconds for which it takes them: requests that are refused count
as those that are served. It is the larger of two averages: one over the time for which a slot
that is lent is gone, and one over the last half second, less its standard error, so that a change
of the load shows within a second and chance does not.

The work of a request is its expected output tokens, of all sequences; what a token takes is
measured from completed requests, by what had been expected of them: so a wrong expectation
corrects itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt
from typing import Final

from orch_sidecar.admission.types import AdmissionRequest

FAST_WINDOW_S: Final = 0.5
UPDATE_EVERY_S: Final = 0.1  # arrivals are added up for so long: a tenth is exact enough
# What each key asks for is updated at most so often that its cost stays below a thousandth.
UPDATE_EVERY_S_PER_KEY: Final = 1e-3
MIN_KEY_SLOTS: Final = 1e-3  # slots: a key that asks for less is forgotten
# Refusals that are remembered, to tell a retry from a new request.
MAX_REFUSALS: Final = 4096

# Until a request has completed: a second for an answer of common length.
DEFAULT_TOKENS: Final = 128.0
DEFAULT_TOKEN_S: Final = 1 / DEFAULT_TOKENS
DEFAULT_LENT_S: Final = 10.0
_LEARNING_RATE: Final = 0.05


class ServicePace:
    """What the requests of a class take, learned from those that completed."""

    def __init__(self) -> None:
        self.service_s = 0.0  # mean of a request
        self.learns_at = float("-inf")  # it needs no other response before that
        self._tokens = 0.0  # mean expected
        self._completed = 0

    @property
    def token_s(self) -> float:
        """Seconds in a slot per expected token."""
        return self.service_s / self._tokens if self._tokens else DEFAULT_TOKEN_S

    def completed(self, expected_tokens: float, elapsed_s: float) -> None:
        """A request completed in `elapsed_s` of which `expected_tokens` (per sequence) were
        expected."""
        share = _LEARNING_RATE
        if self._completed < 20:  # the first ones are a plain mean
            self._completed += 1
            share = 1 / self._completed
        self.service_s += share * (elapsed_s - self.service_s)
        self._tokens += share * (expected_tokens - self._tokens)


@dataclass(slots=True)
class _Key:
    """What the requests of one API key ask for. `work`: since `slow` was updated."""

    weight: float
    work: float = 0.0
    slow: float = 0.0


class Demand:
    """The slots that the requests of one class ask for, of `slots_total` of the engine.

    `lent_s`: for how long a slot that is lent to a bulk request is gone.
    """

    def __init__(self) -> None:
        self.pace = ServicePace()
        self.slots = 0.0  # as of the last update
        self.slots_total = 0
        self.lent_s = DEFAULT_LENT_S
        self._keys: dict[bytes, _Key] = {}
        self._keys_at = 0.0  # when they were updated
        self._within_shares = 1.0  # see `_part_within_shares`
        self._work = self._squares = 0.0  # of each request, since the last update
        self._slow = self._fast = self._variance = 0.0
        self._updated_at = 0.0
        # When requests arrived that are not counted yet; but for those that are retries.
        self.arrivals: list[tuple[float, AdmissionRequest]] = []
        # By key and client: until when a request counts as a retry of one that was refused.
        self.retries: dict[tuple[bytes, int], float] = {}

    def fold(self) -> None:
        """Counts those that have arrived. O(1) each."""
        for at, request in self.arrivals:
            if (
                at - self._updated_at > UPDATE_EVERY_S
            ):  # else it would count as spread over a pause before it
                self._roll(at)
            work = request.work
            entry = self._keys.get(request.key)
            if entry is None:
                entry = self._keys[request.key] = _Key(request.weight)
            entry.weight = request.weight
            entry.work += work
            self._work += work
            self._squares += work * work
        self.arrivals.clear()

    def withdrawn(self, request: AdmissionRequest, age_s: float, now: float) -> None:
        """A request that arrived `age_s` ago does not count any longer: its own limit ended it."""
        self.update(now)
        entry = self._keys.get(request.key)
        if entry is not None:
            work = request.work * exp(-age_s / self.lent_s)
            entry.work -= work
            self._work -= work

    def refused(self, request: AdmissionRequest, until: float, now: float) -> None:
        """A request with an identity was refused, and asked not to return before `until`.

        Nor does it count again while it would have had its slots: a client that repeats a request
        asks for no more than these.
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
        """Updates the averages if they are old enough, and returns the demand in slots.

        At most ten times a second; O(keys) the more seldom, the more there are.
        """
        if self.arrivals:
            self.fold()
        if now - self._updated_at >= UPDATE_EVERY_S:
            self._roll(now)
        return self.slots

    def _roll(self, now: float) -> None:
        passed_s, self._updated_at = now - self._updated_at, now
        token_s = self.pace.token_s
        slow_kept, fast_kept = exp(-passed_s / self.lent_s), exp(-passed_s / FAST_WINDOW_S)
        per_s = token_s / passed_s
        self._slow = max(0.0, slow_kept * self._slow + (1 - slow_kept) * per_s * self._work)
        self._fast = max(0.0, fast_kept * self._fast + (1 - fast_kept) * per_s * self._work)
        # Of a sum of independent requests: the sum of their squares, as far as they still count.
        new = self._squares * ((1 - fast_kept) * per_s) ** 2
        self._variance = fast_kept * fast_kept * self._variance + new
        self._work = self._squares = 0.0
        if now - self._keys_at >= UPDATE_EVERY_S_PER_KEY * len(self._keys):
            self._update_keys(token_s, now)
        self.slots = max(self._slow, self._fast - sqrt(self._variance))
        if self.slots > self.slots_total:
            self.slots *= self._within_shares
        while self.retries and self.retries[first := next(iter(self.retries))] <= now:
            del self.retries[first]

    def _update_keys(self, token_s: float, now: float) -> None:
        """Updates what each key asks for, and forgets those that ask for nothing."""
        passed_s, self._keys_at = now - self._keys_at, now
        kept = exp(-passed_s / self.lent_s)
        for key in list(self._keys):
            entry = self._keys[key]
            asked = (1 - kept) * token_s / passed_s * entry.work
            entry.slow, entry.work = max(0.0, kept * entry.slow + asked), 0.0
            if entry.slow < MIN_KEY_SLOTS:
                del self._keys[key]
        self._within_shares = self._part_within_shares()

    def _part_within_shares(self) -> float:
        """The part of the demand that is left if no key counts for more than its weight's share of
        the slots: where not all can be served, one must not displace the bulk of all."""
        asked = sum(entry.slow for entry in self._keys.values())
        if len(self._keys) < 2 or not asked:
            return 1.0
        weights = sum(entry.weight for entry in self._keys.values())
        counted = sum(
            min(entry.slow, self.slots_total * entry.weight / weights)
            for entry in self._keys.values()
        )
        return counted / asked

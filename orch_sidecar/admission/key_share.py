"""Keeps the share of each API key in the slots of one class: what it was served, runs and queues.

Pure. The queued requests of many keys at once are estimated by their virtual times: the c queued
tokens of a key with the virtual time s and the weight w are dispatched between s and s + c / w, at
a constant rate. The sums over all keys are computed once, and read by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable
from itertools import accumulate
from operator import attrgetter, mul
from typing import Final, NamedTuple

from orch_sidecar.admission.types import QueuedRequest

# Tokens of a request, before any of the key has ended.
FIRST_MEAN_TOKENS: Final = 512


class KeyShare:
    """What a key was served, what it has running, and what it has queued; in tokens.

    `level`: the settled part of its virtual time: what it was served for its weight, but at least
    the system's virtual time when it came back. `running_tokens`: expected of its `running`
    requests; `queued_tokens`: of its queued ones. `later_parts`: queued parts of requests after the
    first ones. `served`: since the start. `mean_tokens`: of a request. `entry`: its entry in the
    heap, 0 without queued requests.
    """

    __slots__ = (
        "entry",
        "key",
        "later_parts",
        "level",
        "mean_tokens",
        "queue",
        "queued_tokens",
        "running",
        "running_tokens",
        "served",
        "weight",
    )

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.weight = 1.0
        self.level = 0.0
        self.running = self.running_tokens = self.queued_tokens = self.served = 0
        self.entry = self.later_parts = 0
        self.queue: OrderedDict[str, QueuedRequest] = OrderedDict()
        self.mean_tokens = FIRST_MEAN_TOKENS

    @property
    def tag(self) -> float:
        """Its virtual time."""
        return self.level + self.running_tokens / self.weight

    @property
    def places(self) -> float:
        """The places of its queued requests, divided by its weight."""
        return (len(self.queue) - self.later_parts) / self.weight

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.queue

    def add(self, queued: QueuedRequest) -> None:
        self.queue[queued.ticket] = queued
        self.queued_tokens += queued.expected_tokens
        self.later_parts += queued.request.is_later_part

    def with_place(self, *, last: bool) -> QueuedRequest | None:
        """Returns the first or the last of its queued requests that takes a place."""
        queue = self.queue.values()
        ordered = reversed(queue) if last else iter(queue)
        return next((each for each in ordered if not each.request.is_later_part), None)

    def remove(self, queued: QueuedRequest) -> None:
        del self.queue[queued.ticket]
        self.queued_tokens -= queued.expected_tokens
        self.later_parts -= queued.request.is_later_part

    def reweigh(self, weight: float, now: float) -> None:
        """Sets another weight, also for what it was served beyond the system's virtual time
        `now`."""
        if self.level > now:
            self.level = now + (self.level - now) * self.weight / weight
        self.weight = weight


def forget_idle(shares: dict[bytes, KeyShare]) -> None:
    """Forgets the half of the idle keys that was served least; they may come back as new ones."""
    idle = sorted((each for each in shares.values() if each.is_idle), key=attrgetter("level"))
    for each in idle[: (len(idle) + 1) // 2]:
        del shares[each.key]


class WorkAhead(NamedTuple):
    """What is dispatched before a request. `tokens`: expected ones."""

    requests: int
    sequences: int
    tokens: float


class Backlog:
    """A snapshot of the queued requests of all keys: there is at least one."""

    def __init__(self, shares: Iterable[KeyShare]) -> None:
        starts: list[tuple[float, float, float]] = []
        ends: list[tuple[float, float, float]] = []
        self._known: dict[bytes, tuple[int, int]] = {}
        for share in shares:
            start, weight = share.tag, share.weight
            requests, tokens = len(share.queue), share.queued_tokens
            rate = requests * weight / tokens
            starts.append((start, weight, rate))
            ends.append((start + tokens / weight, weight, rate))
            self._known[share.key] = requests, tokens
        self._starts, self._ends = _Ramps(starts), _Ramps(ends)

    def before(self, tag: float, own: KeyShare | None) -> WorkAhead:
        """Returns what goes before a request with this virtual time, whose key has the share `own`:
        the requests of that key are counted as they are now."""
        begun_tokens, begun_requests = self._starts.sums_at(tag)
        ended_tokens, ended_requests = self._ends.sums_at(tag)
        tokens, requests = begun_tokens - ended_tokens, begun_requests - ended_requests
        if own is not None:
            known_requests, known_tokens = self._known.get(own.key, (0, 0))
            requests += len(own.queue) - known_requests
            tokens += own.queued_tokens - known_tokens
        return WorkAhead(max(0, round(requests)), 0, max(0.0, tokens))


class _Ramps:
    """The sums of ramps of tokens and of requests. Each ramp begins at a point, and rises."""

    def __init__(self, ramps: list[tuple[float, float, float]]) -> None:
        ramps.sort()
        points, tokens, requests = zip(*ramps, strict=True)
        self._points, self._base = points, points[0]
        along = [point - self._base for point in points]
        self._tokens = list(accumulate(tokens, initial=0.0))
        self._requests = list(accumulate(requests, initial=0.0))
        self._tokens_at = list(accumulate(map(mul, tokens, along), initial=0.0))
        self._requests_at = list(accumulate(map(mul, requests, along), initial=0.0))

    def sums_at(self, point: float) -> tuple[float, float]:
        """Returns the heights of both sums at a point."""
        begun, along = bisect_left(self._points, point), point - self._base
        return (
            along * self._tokens[begun] - self._tokens_at[begun],
            along * self._requests[begun] - self._requests_at[begun],
        )

"""Estimates how much is queued before a virtual time, for many keys at once.

Pure. The c queued tokens of a key with the virtual time s and the weight w are dispatched between s
and s + c / w, at a constant rate. The sums over all keys are computed once, and read by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from orch_sidecar.admission.fairness.key_share import KeyShare


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

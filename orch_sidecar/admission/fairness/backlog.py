"""How much is queued before a virtual time, of many keys at once.

Pure. A key with the virtual time s, the weight w and c queued tokens has them dispatched between s
and s + c / w, at a constant rate. The sums over all keys are made once, and read by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from orch_sidecar.admission.fairness.key_share import KeyShare


class Ahead(NamedTuple):
    """What is dispatched before a request. `tokens`: expected."""

    requests: int
    sequences: int
    tokens: float


class Backlog:
    """The queued requests of all keys, of which there is one at least, when it is made."""

    def __init__(self, shares: Iterable[KeyShare]) -> None:
        starts: list[tuple[float, float, float]] = []
        ends: list[tuple[float, float, float]] = []
        self._known: dict[bytes, tuple[int, int]] = {}
        for share in shares:
            start, weight = share.tag, share.weight
            requests, tokens = len(share.queue), share.backlog
            rate = requests * weight / tokens
            starts.append((start, weight, rate))
            ends.append((start + tokens / weight, weight, rate))
            self._known[share.key] = requests, tokens
        self._starts, self._ends = _Ramps(starts), _Ramps(ends)

    def before(self, tag: float, own: KeyShare | None) -> Ahead:
        """What goes before a request with this virtual time, of the key with the share `own`.

        That key's own requests are counted as they are now.
        """
        begun_tokens, begun_requests = self._starts.until(tag)
        ended_tokens, ended_requests = self._ends.until(tag)
        tokens, requests = begun_tokens - ended_tokens, begun_requests - ended_requests
        if own is not None:
            known_requests, known_tokens = self._known.get(own.key, (0, 0))
            requests += len(own.queue) - known_requests
            tokens += own.backlog - known_tokens
        return Ahead(max(0, round(requests)), 0, max(0.0, tokens))


class _Ramps:
    """The sum of ramps. Each begins at a point, and rises by a rate of tokens and of requests."""

    def __init__(self, ramps: list[tuple[float, float, float]]) -> None:
        ramps.sort()
        points, tokens, requests = zip(*ramps, strict=True)
        self._points, self._base = points, points[0]
        along = [point - self._base for point in points]
        self._tokens = list(accumulate(tokens, initial=0.0))
        self._requests = list(accumulate(requests, initial=0.0))
        self._tokens_at = list(accumulate(map(mul, tokens, along), initial=0.0))
        self._requests_at = list(accumulate(map(mul, requests, along), initial=0.0))

    def until(self, point: float) -> tuple[float, float]:
        """The heights of both sums at a point."""
        begun, along = bisect_left(self._points, point), point - self._base
        return (
            along * self._tokens[begun] - self._tokens_at[begun],
            along * self._requests[begun] - self._requests_at[begun],
        )

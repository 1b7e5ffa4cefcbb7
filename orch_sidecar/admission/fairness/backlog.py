"""How much is queued before a virtual time, of many keys at once.

Pure. A key with the virtual time s, the weight w and c queued tokens has them dispatched between s
and s + c / w, at a constant rate. The sums over all keys are made once, and read by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from orch_sidecar.admission.fairness.key_share import KeyShare


class Ahead(NamedTuple):
    """What is dispatched before a request. `tokens`: as charged."""

    requests: int
    sequences: int
    tokens: float


class Backlog:
    """The queued requests of all keys, at the time at which it is made."""

    def __init__(self, shares: Iterable[KeyShare]) -> None:
        starts: list[tuple[float, float, float]] = []
        ends: list[tuple[float, float, float]] = []
        self._known: dict[bytes, tuple[int, int]] = {}
        for share in shares:
            start, requests, tokens = share.tag, len(share.queue), share.backlog
            rates = share.weight, requests * share.weight / tokens
            starts.append((start, *rates))
            ends.append((start + tokens / share.weight, *rates))
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
        self._points = [point for point, _, _ in ramps]
        self._base = base = self._points[0] if ramps else 0.0
        self._tokens = _sums(rate for _, rate, _ in ramps)
        self._requests = _sums(rate for _, _, rate in ramps)
        self._tokens_at = _sums(rate * (point - base) for point, rate, _ in ramps)
        self._requests_at = _sums(rate * (point - base) for point, _, rate in ramps)

    def until(self, point: float) -> tuple[float, float]:
        """The heights of both sums at a point."""
        begun, along = bisect_left(self._points, point), point - self._base
        return (
            along * self._tokens[begun] - self._tokens_at[begun],
            along * self._requests[begun] - self._requests_at[begun],
        )


def _sums(values: Iterable[float]) -> list[float]:
    return list(accumulate(values, initial=0.0))

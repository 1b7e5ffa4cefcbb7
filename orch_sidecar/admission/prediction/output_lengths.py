"""How much requests generate, learned from those that ended.

Pure. Requests are alike that have the same class and a similar limit (`max_tokens`, to a power
of two); what is learned of those with a limit is the share of it that they used, so that those
which always run to their limit are known exactly. What one will generate is the mean of what its
like did; what is left of one that runs is the mean of those that went further than it has, less
what it has (the mean residual life of the empirical distribution): so a long answer is not
expected to end at the next token.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from itertools import accumulate
from typing import Final

from vllm_plugin.profile import ServiceClass

# Follows a change of traffic within that many answers.
SAMPLES: Final = 128
_NO_LIMIT: Final = -1
_BULK: Final = ServiceClass.BULK
# One that went further than all before it is expected to go on for a quarter of what it has:
# long answers have long tails.
_TAIL: Final = 0.25


class _Alike:
    """Recent lengths of requests that are alike: tokens per sequence, or shares of a limit."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._sums: list[float] = []  # of the sorted lengths, from each to the last
        self._sum = 0.0
        self.mean = 0.0  # it is asked for more often than anything is learned

    def learn(self, length: float) -> None:
        self._recent.append(length)
        self._sum += length
        insort(self._sorted, length)
        if len(self._recent) > SAMPLES:
            oldest = self._recent.popleft()
            self._sum -= oldest
            del self._sorted[bisect_right(self._sorted, oldest) - 1]
        self._sums = []
        self.mean = self._sum / len(self._recent)

    def beyond(self, produced: float) -> float:
        """The mean length of those that went further than `produced`."""
        first = bisect_right(self._sorted, produced)
        longer = len(self._sorted) - first
        if not longer:
            return produced * (1 + _TAIL)
        if not self._sums:
            self._sums = list(accumulate(reversed(self._sorted)))
        return self._sums[longer - 1] / longer


class OutputLengths:
    """Expected output lengths, in tokens per sequence."""

    def __init__(self) -> None:
        self._alike: dict[bool, dict[int, _Alike]] = {True: {}, False: {}}

    def learn(self, service_class: ServiceClass, max_tokens: int | None, tokens: float) -> None:
        """A request ended of itself after so many tokens (per sequence)."""
        of_class = self._alike[service_class is _BULK]
        key = _NO_LIMIT if max_tokens is None else max_tokens.bit_length()
        alike = of_class.get(key)
        if alike is None:
            alike = of_class[key] = _Alike()
        alike.learn(tokens if max_tokens is None else tokens / max(1, max_tokens))

    def expected(self, service_class: ServiceClass, max_tokens: int | None) -> float | None:
        """Tokens of a request that begins; None: nothing is known. Never above its limit."""
        of_class = self._alike[service_class is _BULK]
        if max_tokens is None:
            alike = of_class.get(_NO_LIMIT)
            return None if alike is None else alike.mean
        alike = of_class.get(max_tokens.bit_length())
        return max_tokens if alike is None or alike.mean >= 1.0 else alike.mean * max_tokens

    def remaining(
        self, service_class: ServiceClass, max_tokens: int | None, produced: float
    ) -> float | None:
        """Tokens still to come of a request that has produced some; at least one."""
        alike = self._find(service_class, max_tokens)
        if max_tokens is None:
            return None if alike is None else max(1.0, alike.beyond(produced) - produced)
        limit = max(1, max_tokens)
        share = 1.0 if alike is None else min(1.0, alike.beyond(produced / limit))
        return max(1.0, share * limit - produced)

    def _find(self, service_class: ServiceClass, max_tokens: int | None) -> _Alike | None:
        of_class = self._alike[service_class is _BULK]
        if max_tokens is not None:
            return of_class.get(max_tokens.bit_length())
        return of_class.get(_NO_LIMIT)

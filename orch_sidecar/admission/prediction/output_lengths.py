"""Learns how many tokens requests generate, from those that completed.

Pure. Samples are grouped by class and by similar limit (`max_tokens`, to a power of two). Of a
request with a limit, the sample is the share of it that was used, so that requests which always
reach their limit are predicted exactly. The expected length of a request is the mean of its group.
The expected rest of a running one is the mean of the longer samples, less what it has generated
(the mean residual life of the empirical distribution), so that a long output is not expected to end
at the next token.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from itertools import accumulate
from typing import Final

from vllm_plugin.contracts.profile import ServiceClass

# A change of traffic is followed within this many responses.
MAX_SAMPLES: Final = 128
# Of more, sorting all takes less time than inserting each.
_MAX_INSERTED: Final = 8
_NO_LIMIT: Final = -1
# An output longer than all samples is expected to continue for a quarter of its length: long
# outputs have long tails.
_TAIL_SHARE: Final = 0.25


class _LengthSample:
    """Recent output lengths of similar requests: tokens per sequence, or shares of a limit."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        # What `_sorted` lacks: so many of the last ones, and the removal of these.
        self._unsorted = 0
        self._dropped: deque[float] = deque(maxlen=MAX_SAMPLES)
        self._sums: list[float] = []  # of the sorted lengths, from the longest on
        self._sum = 0.0
        self.mean = 0.0  # kept, because it is read more often than it changes

    def learn(self, length: float) -> None:
        self._recent.append(length)
        self._sum += length
        self._unsorted += 1
        if len(self._recent) > MAX_SAMPLES:
            oldest = self._recent.popleft()
            self._sum -= oldest
            self._dropped.append(oldest)
        self.mean = self._sum / len(self._recent)

    def mean_beyond(self, produced: float) -> float:
        """Returns the mean of the lengths beyond `produced`."""
        if self._unsorted:
            self._sort()
        first = bisect_right(self._sorted, produced)
        longer = len(self._sorted) - first
        if not longer:
            return produced * (1 + _TAIL_SHARE)
        if not self._sums:
            self._sums = list(accumulate(reversed(self._sorted)))
        return self._sums[longer - 1] / longer

    def _sort(self) -> None:
        """Sorts what was learned since the last time. Only predictions for a queue need that."""
        if self._unsorted > _MAX_INSERTED:
            self._sorted = sorted(self._recent)
        else:
            for length in self._dropped:
                del self._sorted[bisect_right(self._sorted, length) - 1]
            for at in range(-self._unsorted, 0):
                insort(self._sorted, self._recent[at])
        self._unsorted = 0
        self._dropped.clear()
        self._sums = []


class OutputLengths:
    """Expected output lengths, in tokens per sequence."""

    def __init__(self) -> None:
        # By the rank of their class; by the size of the limit.
        self._samples: tuple[dict[int, _LengthSample], ...] = tuple({} for _ in ServiceClass)

    def learn(self, service_class: ServiceClass, max_tokens: int | None, tokens: float) -> None:
        """Learns from a request that completed after `tokens` (per sequence)."""
        of_class = self._samples[service_class.rank]
        key = _NO_LIMIT if max_tokens is None else max_tokens.bit_length()
        sample = of_class.get(key)
        if sample is None:
            sample = of_class[key] = _LengthSample()
        sample.learn(tokens if max_tokens is None else tokens / max(1, max_tokens))

    def expected(self, service_class: ServiceClass, max_tokens: int | None) -> float | None:
        """Returns the expected tokens of a new request, within its limit; None: unknown."""
        of_class = self._samples[service_class.rank]
        sample = of_class.get(_NO_LIMIT if max_tokens is None else max_tokens.bit_length())
        if max_tokens is None:
            return None if sample is None else sample.mean
        return max_tokens if sample is None or sample.mean >= 1.0 else sample.mean * max_tokens

    def learned_tokens(self, service_class: ServiceClass, max_tokens: int | None) -> float | None:
        """Returns the same; None if nothing was learned, also for a request with a limit."""
        if self._sample(service_class, max_tokens) is None:
            return None
        return self.expected(service_class, max_tokens)

    def remaining(
        self, service_class: ServiceClass, max_tokens: int | None, produced: float
    ) -> float | None:
        """Returns the expected tokens after the `produced` ones of a request; at least one."""
        sample = self._sample(service_class, max_tokens)
        if max_tokens is None:
            return None if sample is None else max(1.0, sample.mean_beyond(produced) - produced)
        limit = max(1, max_tokens)
        share = 1.0 if sample is None else min(1.0, sample.mean_beyond(produced / limit))
        return max(1.0, share * limit - produced)

    def _sample(self, service_class: ServiceClass, max_tokens: int | None) -> _LengthSample | None:
        of_class = self._samples[service_class.rank]
        if max_tokens is not None:
            return of_class.get(max_tokens.bit_length())
        return of_class.get(_NO_LIMIT)

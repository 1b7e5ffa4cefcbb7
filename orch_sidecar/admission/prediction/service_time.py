"""Predicts how long requests take, from the measured step time and from those that completed.

Pure: times are seconds of a monotonic clock. Without a step time nothing is predicted. A request
decodes at the measured step time, and the engine reads prompts meanwhile (`prompts`): the ends of
running requests are predicted in seconds of decoding, to which the time of all prompts that are
read before is added. So a wave of prompts is predicted as such. Any further delay is learned.

Output lengths are learned by class and by similar limit (`max_tokens`, to a power of two). Of a
request with a limit, the sample is the share of it that was used, so that requests which always
reach their limit are predicted exactly. The expected length of a request is the mean of its group.
The expected rest of a running one is the mean of the longer samples, less what it has generated
(the mean residual life of the empirical distribution), so that a long output is not expected to end
at the next token.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.prompts import UnreadPrompts
from orch_sidecar.admission.types import (
    AdmissionRequest,
    EndedLease,
    EngineReport,
    Lease,
    StepTime,
)
from vllm_plugin.contracts.profile import ServiceClass

# A change of traffic is followed within this many responses.
MAX_SAMPLES: Final = 128
# Of more, sorting all takes less time than inserting each.
_MAX_INSERTED: Final = 8
_NO_LIMIT: Final = -1
# An output longer than all samples is expected to continue for a quarter of its length: long
# outputs have long tails.
_TAIL_SHARE: Final = 0.25

LEARNING_RATE: Final = 0.1
# Bounds of the deviation from a prediction, of one request and of all together.
MAX_FACTOR, MIN_FACTOR = 10.0, 0.1

# How many prompt tokens a generated token counts for: prompts are computed many tokens at once.
OUTPUT_TOKEN_WEIGHT: Final = 2
# Expected within the limit of the request while nothing is known of such requests.
_DEFAULT_OUTPUT_TOKENS: Final = 256

# After this many responses, a few per second teach as much as all of them.
_WARM_UP_RESPONSES: Final = 1000
_LEARN_EVERY_S: Final = 0.005


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


class Slowness:
    """The `factor` of the time that recent requests took to that which was predicted.

    Contexts are long, and machines are shared. Mean times are compared, not ratios: a short request
    waits for a step to begin, which is much of its time; by its ratio, long ones would be predicted
    to take longer than they do.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._took_s = self._predicted_s = 0.0  # means

    def learn(self, took_s: float, predicted_s: float) -> None:
        """Learns from a request that took `took_s`. `predicted_s`: without the factor, above 0."""
        expected_s = predicted_s * self.factor
        took_s = min(max(took_s, MIN_FACTOR * expected_s), MAX_FACTOR * expected_s)
        if not self._predicted_s:  # one request alone changes little
            self._took_s = self._predicted_s = predicted_s
        self._took_s += LEARNING_RATE * (took_s - self._took_s)
        self._predicted_s += LEARNING_RATE * (predicted_s - self._predicted_s)
        self.factor = min(max(self._took_s / self._predicted_s, MIN_FACTOR), MAX_FACTOR)


def counted_tokens(request: AdmissionRequest, output_tokens: float) -> int:
    """Returns the tokens that a request with this output counts for its key; at least 1."""
    return 1 + request.prompt_tokens + int(OUTPUT_TOKEN_WEIGHT * output_tokens)


def output_of(prompt_tokens: float, tokens: float) -> float:
    """Returns the output of requests with such prompts that count these `tokens` for their keys."""
    return max(0.0, tokens - prompt_tokens) / OUTPUT_TOKEN_WEIGHT


class ServiceTimes:
    """Predicts the service times of one engine's requests."""

    def __init__(self, ledger: Ledger) -> None:
        self.lengths = OutputLengths()
        self.step_time: StepTime | None = None
        self.prompts = UnreadPrompts()
        self._ledger = ledger
        self.slowness = Slowness()
        self._learned = 0
        self._learned_at = float("-inf")

    # Events

    def reported(self, report: EngineReport, step_time: StepTime | None, now: float) -> None:
        """The engine reported its state. `step_time`: None if nothing can be predicted from it."""
        self.step_time = step_time
        step_s = self.step_s(0)
        slow_s = None if step_s is None else self.slowness.factor * step_s
        self.prompts.reported(report, self._ledger.leased, self.slowness.factor, slow_s, now)

    def begin_epoch(self) -> None:
        """The engine restarted, with nothing to read."""
        self.prompts = UnreadPrompts()

    def learn(self, ended: Iterable[EndedLease]) -> None:
        """Learns from those that completed how long outputs are, and how slow the engine is."""
        for lease, output_tokens, _, now in ended:
            request = lease.request
            if request is None or output_tokens is None:
                continue
            if self._learned > _WARM_UP_RESPONSES and now < self._learned_at:
                continue
            self._learned += 1
            self._learned_at = now + _LEARN_EVERY_S
            self._completed(lease, request, output_tokens / lease.cost, now)

    def _completed(
        self, lease: Lease, request: AdmissionRequest, output_tokens: float, now: float
    ) -> None:
        """Learns from a request that completed after `output_tokens` (per sequence)."""
        self.lengths.learn(request.service_class, request.max_tokens, output_tokens)
        token_s = self.token_s(request.cost)
        if token_s is None or output_tokens < 2:
            return
        predicted_s = self._reading_s(lease, now) + output_tokens * token_s
        self.slowness.learn(now - lease.granted_at, predicted_s)

    # Predictions

    def first_token_s(self, request: AdmissionRequest, before: float = 0.0) -> float | None:
        """Returns the seconds from a request's slot to its first token. `before`: prompt tokens
        that are read before its own."""
        step_s = self.step_s(request.cost)
        if step_s is None:
            return None
        return self.slowness.factor * self.prompts.reading_s(before, request.prompt_tokens, step_s)

    def pace_s(self, more: int = 1) -> float | None:
        """Returns the seconds of decoding per token with `more` sequences than now."""
        token_s = self.token_s(more)
        return None if token_s is None else self.slowness.factor * token_s

    def token_ms_p95(self, cost: int, *, joins: bool) -> float | None:
        """Returns the 95th percentile of the milliseconds per token with `cost` more sequences.

        `joins`: they enlarge the batch; otherwise they replace others.
        """
        step_time = self.step_time
        if step_time is None:
            return None
        batch = self._batch(cost) if joins else max(cost, self._batch(0))
        return step_time.token_ms(batch) * max(1.0, step_time.traffic)

    def service_s(self, request: AdmissionRequest, *, joins: bool = False) -> float | None:
        """Returns the seconds from a request's slot to its end.

        `joins`: it takes a free slot, and so enlarges the batch; otherwise it replaces another.
        """
        token_s = self.token_s(request.cost if joins else 0)
        tokens = self.lengths.expected(request.service_class, request.max_tokens)
        if token_s is None or tokens is None:
            return None
        return self.slowness.factor * (self._prefill_s(request) + tokens * token_s)

    def remaining_s(self, lease: Lease, request: AdmissionRequest, now: float) -> float | None:
        """Returns the seconds to the end of a running request."""
        decoding_s = self.decoding_s(lease, request, now)
        return None if decoding_s is None else self.wall_s(decoding_s, self.prompts.unread(now))

    def decoding_s(self, lease: Lease, request: AdmissionRequest, now: float) -> float | None:
        """Returns the seconds of decoding to the end of a running request."""
        token_s = self.token_s()
        if token_s is None:
            return None
        produced = self._generated(lease, token_s, now)
        tokens = self.lengths.remaining(request.service_class, request.max_tokens, produced)
        return None if tokens is None else self.slowness.factor * tokens * token_s

    def _generated(self, lease: Lease, token_s: float, now: float) -> float:
        """Returns the tokens that a running request has generated, per sequence."""
        if self.prompts.tokens_read(now) < lease.read_to:
            return 0.0
        decoded_s = (now - lease.granted_at) / self.slowness.factor - self._reading_s(lease, now)
        return max(0.0, decoded_s / token_s)

    def _reading_s(self, lease: Lease, now: float) -> float:
        """Returns how many seconds the engine has read prompts since a request started."""
        rate = self.prompts.tokens_per_s
        return (self.prompts.tokens_read(now) - lease.read_from) / rate if rate else 0.0

    def wall_s(self, decoding_s: float, prompt_tokens: float) -> float:
        """Returns the seconds in which the engine decodes for `decoding_s`, and reads prompts."""
        slowness = self.slowness.factor
        step_s = self.step_s(0) or 0.0
        return slowness * self.prompts.wall_s(decoding_s / slowness, prompt_tokens, step_s)

    def expected_tokens(self, request: AdmissionRequest) -> int:
        """Returns the tokens that a request counts for its key until it has ended."""
        limit = request.max_tokens
        tokens = self.lengths.learned_tokens(request.service_class, limit)
        if tokens is None:
            tokens = _DEFAULT_OUTPUT_TOKENS if limit is None else min(limit, _DEFAULT_OUTPUT_TOKENS)
        return counted_tokens(request, request.cost * tokens)

    def tokens_used(
        self, lease: Lease, request: AdmissionRequest, output_tokens: float | None, now: float
    ) -> int:
        """Returns the tokens that an ended request counts for its key.

        If their number is unknown (the response was cut short, or has no usage), it is that which
        was expected, or which it can have generated in its time if that is more.
        """
        if output_tokens is not None:
            return 1 + request.prompt_tokens + OUTPUT_TOKEN_WEIGHT * int(output_tokens)
        token_s = self.token_s()
        if token_s is None:
            return lease.expected_tokens
        each = self._generated(lease, token_s, now)
        if request.max_tokens is not None:
            each = min(each, request.max_tokens)
        return max(lease.expected_tokens, counted_tokens(request, request.cost * each))

    def step_s(self, more: int) -> float | None:
        """Returns the seconds of a step with `more` sequences than now."""
        step_time = self.step_time
        return None if step_time is None else step_time.ms(self._batch(more)) / 1000

    def token_s(self, more: int = 0) -> float | None:
        """Returns the seconds per token with `more` sequences than now: a step, or a part of it."""
        step_time = self.step_time
        return None if step_time is None else step_time.token_ms(self._batch(more)) / 1000

    def _batch(self, more: int) -> int:
        return max(1, self._ledger.leased + self._ledger.foreign + more)

    def _prefill_s(self, request: AdmissionRequest) -> float:
        rate = self.prompts.tokens_per_s
        return request.prompt_tokens / rate if rate else 0.0

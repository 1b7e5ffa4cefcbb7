"""Predicts how long requests take, and when queued ones will start.

Pure: times are seconds of a monotonic clock. Knows the leases, and the output lengths and
durations of earlier requests; predicts from the measured step time, and nothing without one.

A request decodes at the measured step time, and the engine reads prompts meanwhile (`prompts`): the
ends of running requests are predicted in seconds of decoding, to which the time of all prompts that
are read before is added. So a wave of prompts is predicted as such. Any further delay is learned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.freed_slots import Schedule
from orch_sidecar.admission.prediction.output_lengths import OutputLengths
from orch_sidecar.admission.prediction.prompts import UnreadPrompts
from orch_sidecar.admission.types import (
    AdmissionRequest,
    EndedLease,
    EngineReport,
    Lease,
    StepTime,
)
from vllm_plugin.contracts.profile import IDLE, ServiceClass

LEARNING_RATE: Final = 0.1
# Bounds of the deviation from a prediction, of one request and of all together.
MAX_FACTOR, MIN_FACTOR = 10.0, 0.1


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


# The ends of running requests are predicted again after this time or, while only few leases run,
# after any change.
MAX_AGE_S: Final = 0.02
MAX_FRESH_LEASES: Final = 32

# An abort takes effect after the current step, and is reported after the next one.
ABORT_STEPS: Final = 2
REPORT_DELAY_S: Final = 0.02
# How many prompt tokens a generated token counts for: prompts are computed many tokens at once.
OUTPUT_TOKEN_WEIGHT: Final = 2
# Expected within the limit of the request while nothing is known of such requests.
_DEFAULT_OUTPUT_TOKENS: Final = 256

# After this many responses, a few per second teach as much as all of them.
_WARM_UP_RESPONSES: Final = 1000
_LEARN_EVERY_S: Final = 0.005


class Forecast(NamedTuple):
    """Milliseconds from now to a request's slot, to its first token and to its end."""

    start_ms: float
    first_token_ms: float
    end_ms: float


class Start(NamedTuple):
    """Seconds until a request has its slots, and until its first token if that is known."""

    slots_s: float
    first_token_s: float | None

    @property
    def ms(self) -> int:
        return round(1000 * self.slots_s)


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
        self._slowness = Slowness()
        self._learned = 0
        self._learned_at = float("-inf")
        # By class (None: interactive and bulk): when the ends of running sequences were predicted,
        # and the seconds of decoding to each; None: unknown.
        self._ends: dict[ServiceClass | None, tuple[float, list[float] | None]] = {}
        self._changed = True
        self._grants = 0  # the ledger's count when the ends were predicted last

    # Events

    def reported(self, report: EngineReport, step_time: StepTime | None, now: float) -> None:
        """The engine reported its state. `step_time`: None if nothing can be predicted from it."""
        self.step_time, self._changed = step_time, True
        step_s = self._step_s(0)
        slow_s = None if step_s is None else self._slowness.factor * step_s
        self.prompts.reported(report, self._ledger.leased, self._slowness.factor, slow_s, now)

    def begin_epoch(self) -> None:
        """The engine restarted, with nothing to read."""
        self.prompts = UnreadPrompts()

    def invalidate(self) -> None:
        """Has the ends predicted again: a request ended, or is about to."""
        self._changed = True

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
        token_s = self._token_s(request.cost)
        if token_s is None or output_tokens < 2:
            return
        predicted_s = self._reading_s(lease, now) + output_tokens * token_s
        self._slowness.learn(now - lease.granted_at, predicted_s)

    # Predictions

    def first_token_s(self, request: AdmissionRequest, before: float = 0.0) -> float | None:
        """Returns the seconds from a request's slot to its first token. `before`: prompt tokens
        that are read before its own."""
        step_s = self._step_s(request.cost)
        if step_s is None:
            return None
        return self._slowness.factor * self.prompts.reading_s(before, request.prompt_tokens, step_s)

    def pace_s(self, more: int = 1) -> float | None:
        """Returns the seconds of decoding per token with `more` sequences than now."""
        token_s = self._token_s(more)
        return None if token_s is None else self._slowness.factor * token_s

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
        token_s = self._token_s(request.cost if joins else 0)
        tokens = self.lengths.expected(request.service_class, request.max_tokens)
        if token_s is None or tokens is None:
            return None
        return self._slowness.factor * (self._prefill_s(request) + tokens * token_s)

    def remaining_s(self, lease: Lease, request: AdmissionRequest, now: float) -> float | None:
        """Returns the seconds to the end of a running request."""
        decoding_s = self._decoding_s(lease, request, now)
        return None if decoding_s is None else self._wall_s(decoding_s, self.prompts.unread(now))

    def _decoding_s(self, lease: Lease, request: AdmissionRequest, now: float) -> float | None:
        """Returns the seconds of decoding to the end of a running request."""
        token_s = self._token_s()
        if token_s is None:
            return None
        produced = self._generated(lease, token_s, now)
        tokens = self.lengths.remaining(request.service_class, request.max_tokens, produced)
        return None if tokens is None else self._slowness.factor * tokens * token_s

    def _generated(self, lease: Lease, token_s: float, now: float) -> float:
        """Returns the tokens that a running request has generated, per sequence."""
        if self.prompts.tokens_read(now) < lease.read_to:
            return 0.0
        decoded_s = (now - lease.granted_at) / self._slowness.factor - self._reading_s(lease, now)
        return max(0.0, decoded_s / token_s)

    def _reading_s(self, lease: Lease, now: float) -> float:
        """Returns how many seconds the engine has read prompts since a request started."""
        rate = self.prompts.tokens_per_s
        return (self.prompts.tokens_read(now) - lease.read_from) / rate if rate else 0.0

    def _wall_s(self, decoding_s: float, prompt_tokens: float) -> float:
        slowness = self._slowness.factor
        step_s = self._step_s(0) or 0.0
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
        token_s = self._token_s()
        if token_s is None:
            return lease.expected_tokens
        each = self._generated(lease, token_s, now)
        if request.max_tokens is not None:
            each = min(each, request.max_tokens)
        return max(lease.expected_tokens, counted_tokens(request, request.cost * each))

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
        return Schedule([0.0] * free + ends[ended:], self.prompts.unread(now))

    def start_s(self, schedule: Schedule, cost: int) -> float | None:
        """Returns the seconds until a request behind a schedule gets its slots; None: never."""
        decoding_s = schedule.start(cost)
        return None if decoding_s is None else self._wall_s(decoding_s, schedule.prompt_tokens)

    def fill(self, schedule: Schedule, prompt_work: float, output: float, sequences: int) -> None:
        """Puts equal sequences behind the others, if their length is known.

        `prompt_work`: the prompt tokens of their requests, times the sequences of each. `output`:
        the expected tokens of all.
        """
        token_s = self._token_s()
        if token_s is not None:
            schedule.fill(sequences, self._slowness.factor * output * token_s / sequences)
            schedule.prompt_tokens += prompt_work

    def place(self, schedule: Schedule, request: AdmissionRequest) -> None:
        """Puts a request behind the others, if its length is known."""
        token_s = self._token_s()
        tokens = self.lengths.expected(request.service_class, request.max_tokens)
        if token_s is not None and tokens is not None:
            schedule.place(request.cost, self._slowness.factor * tokens * token_s)
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
                remaining_s = self._decoding_s(lease, request, now)
            if remaining_s is None:
                return None
            ends += [remaining_s] * request.cost
        return sorted(ends)

    def _confirmed_in_s(self) -> float | None:
        """Returns the seconds until the engine confirms the end of an aborted request."""
        step_s = self._step_s(0)
        return None if step_s is None else ABORT_STEPS * step_s + REPORT_DELAY_S

    def _step_s(self, more: int) -> float | None:
        """Returns the seconds of a step with `more` sequences than now."""
        step_time = self.step_time
        return None if step_time is None else step_time.ms(self._batch(more)) / 1000

    def _token_s(self, more: int = 0) -> float | None:
        """Returns the seconds per token with `more` sequences than now: a step, or a part of it."""
        step_time = self.step_time
        return None if step_time is None else step_time.token_ms(self._batch(more)) / 1000

    def _batch(self, more: int) -> int:
        return max(1, self._ledger.leased + self._ledger.foreign + more)

    def _prefill_s(self, request: AdmissionRequest) -> float:
        rate = self.prompts.tokens_per_s
        return request.prompt_tokens / rate if rate else 0.0

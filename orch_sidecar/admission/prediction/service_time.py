"""Predicts how long requests take, and when queued ones will start.

Pure: times are seconds of a monotonic clock. Knows the leases, and the output lengths and
durations of earlier requests; predicts from the measured step time, and nothing without one.

A request decodes at the measured step time, while the engine reads the prompts that it has been
sent (`prompts`): the ends of running requests are predicted in seconds of decoding, to which the
time of all prompts that are read before is added. So a wave of prompts is predicted as such, and
what requests take beyond both is learned.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.output_lengths import OutputLengths
from orch_sidecar.admission.prediction.prompts import UnreadPrompts
from orch_sidecar.admission.prediction.schedule import Schedule
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, Lease, StepTime
from vllm_plugin.contracts.profile import IDLE, ServiceClass

LEARNING_RATE: Final = 0.1
# How far requests may deviate from what is predicted of them, and all of them together.
MAX_FACTOR, MIN_FACTOR = 10.0, 0.1


class Slowness:
    """`factor`: what requests of late took, over what was predicted of them.

    Contexts are long and machines shared. Mean times are compared, not ratios: a short request
    waits for a step to begin, which is much of its time, and by its ratio long ones would be
    predicted to take longer than they do.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._took_s = self._predicted_s = 0.0  # means

    def learn(self, took_s: float, predicted_s: float) -> None:
        """A request took `took_s` of which `predicted_s` (above 0) were predicted, without the
        factor."""
        expected_s = predicted_s * self.factor
        took_s = min(max(took_s, MIN_FACTOR * expected_s), MAX_FACTOR * expected_s)
        if not self._predicted_s:  # one request alone changes little
            self._took_s = self._predicted_s = predicted_s
        self._took_s += LEARNING_RATE * (took_s - self._took_s)
        self._predicted_s += LEARNING_RATE * (predicted_s - self._predicted_s)
        self.factor = min(max(self._took_s / self._predicted_s, MIN_FACTOR), MAX_FACTOR)


# The ends of running requests are predicted again after this time, or after any change while few
# are running.
MAX_AGE_S: Final = 0.02
MAX_FRESH_LEASES: Final = 32

# An abort takes effect after the current step, and is reported after the next one.
ABORT_STEPS: Final = 2
REPORT_DELAY_S: Final = 0.02
# A generated token counts as so many prompt tokens: prompts are computed many at once.
OUTPUT_TOKEN_WEIGHT: Final = 2
# Expected, within the limit of the request, while nothing is known of such requests.
_DEFAULT_OUTPUT_TOKENS: Final = 256

# After this many responses, a few per second are as informative as all of them.
_MANY_RESPONSES: Final = 1000
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
    """The tokens that count for the key of a request which generates so many; at least 1."""
    return 1 + request.prompt_tokens + int(OUTPUT_TOKEN_WEIGHT * output_tokens)


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
        # Seconds of decoding to the ends of running sequences of a class (None: of both), and when
        # they were predicted; None: unknown.
        self._ends: dict[ServiceClass | None, tuple[float, list[float] | None]] = {}
        self._changed = True
        self._grants = 0  # of the ledger, when they were predicted last

    # Events

    def reported(self, report: EngineReport, step_time: StepTime | None, now: float) -> None:
        """The engine reported its state. `step_time`: None while it cannot be predicted from."""
        self.step_time, self._changed = step_time, True
        step_s = self._step_s(0)
        slow_s = None if step_s is None else self._slowness.factor * step_s
        self.prompts.reported(report, self._ledger.leased, self._slowness.factor, slow_s, now)

    def begin_epoch(self) -> None:
        """The engine restarted, with nothing to read."""
        self.prompts = UnreadPrompts()

    def invalidate(self) -> None:
        """A request ended, or is about to."""
        self._changed = True

    def completed(
        self, lease: Lease, request: AdmissionRequest, output_tokens: float, now: float
    ) -> None:
        """Learns from a request that completed after `output_tokens` (per sequence)."""
        if self._learned > _MANY_RESPONSES and now < self._learned_at:
            return
        self._learned += 1
        self._learned_at = now + _LEARN_EVERY_S
        self.lengths.learn(request.service_class, request.max_tokens, output_tokens)
        token_s = self._token_s(request.cost)
        if token_s is None or output_tokens < 2:
            return
        predicted_s = self._reading_s(lease, now) + output_tokens * token_s
        self._slowness.learn(now - lease.granted_at, predicted_s)

    # Predictions

    def first_token_s(self, request: AdmissionRequest, before: float = 0.0) -> float | None:
        """Seconds from its slot to its first token. `before`: prompt tokens to read before its
        own."""
        step_s = self._step_s(request.cost)
        if step_s is None:
            return None
        return self._slowness.factor * self.prompts.reading_s(before, request.prompt_tokens, step_s)

    def pace_s(self, more: int = 1) -> float | None:
        """Seconds of decoding per token of each sequence, with so many more than those that run."""
        token_s = self._token_s(more)
        return None if token_s is None else self._slowness.factor * token_s

    def token_ms_p95(self, cost: int, *, joins: bool) -> float | None:
        """Milliseconds per token in a batch with `cost` more sequences, at the 95th percentile.

        `joins`: they enlarge the batch; else they replace others.
        """
        step_time = self.step_time
        if step_time is None:
            return None
        batch = self._batch(cost) if joins else max(cost, self._batch(0))
        return step_time.token_ms(batch) * max(1.0, step_time.traffic)

    def service_s(self, request: AdmissionRequest, *, joins: bool = False) -> float | None:
        """Seconds from its slot to its end.

        `joins`: it takes a free slot, and so enlarges the batch; else it replaces another.
        """
        token_s = self._token_s(request.cost if joins else 0)
        tokens = self.lengths.expected(request.service_class, request.max_tokens)
        if token_s is None or tokens is None:
            return None
        return self._slowness.factor * (self._prefill_s(request) + tokens * token_s)

    def remaining_s(self, lease: Lease, request: AdmissionRequest, now: float) -> float | None:
        """Seconds to the end of a running request."""
        decoding_s = self._decoding_s(lease, request, now)
        return None if decoding_s is None else self._stretched(decoding_s, self.prompts.left(now))

    def _decoding_s(self, lease: Lease, request: AdmissionRequest, now: float) -> float | None:
        """Seconds of decoding to the end of a running request."""
        token_s = self._token_s()
        if token_s is None:
            return None
        made = self._made(lease, token_s, now)
        tokens = self.lengths.remaining(request.service_class, request.max_tokens, made)
        return None if tokens is None else self._slowness.factor * tokens * token_s

    def _made(self, lease: Lease, token_s: float, now: float) -> float:
        """The tokens that a running request has generated, per sequence."""
        if self.prompts.read(now) < lease.read_to:
            return 0.0
        decoded_s = (now - lease.granted_at) / self._slowness.factor - self._reading_s(lease, now)
        return max(0.0, decoded_s / token_s)

    def _reading_s(self, lease: Lease, now: float) -> float:
        """Seconds for which the engine has read prompts since a request started."""
        rate = self.prompts.tokens_per_s
        return (self.prompts.read(now) - lease.read_from) / rate if rate else 0.0

    def _stretched(self, decoding_s: float, prompt_tokens: float) -> float:
        slowness = self._slowness.factor
        step_s = self._step_s(0) or 0.0
        return slowness * self.prompts.stretched(decoding_s / slowness, prompt_tokens, step_s)

    def expected_tokens(self, request: AdmissionRequest) -> int:
        """The tokens that count for the key of a request until it has ended."""
        limit = request.max_tokens
        tokens = self.lengths.learned(request.service_class, limit)
        if tokens is None:
            tokens = _DEFAULT_OUTPUT_TOKENS if limit is None else min(limit, _DEFAULT_OUTPUT_TOKENS)
        return counted_tokens(request, request.cost * tokens)

    def tokens_used(
        self, lease: Lease, request: AdmissionRequest, output_tokens: float | None, now: float
    ) -> int:
        """The tokens that count for the key of a request which ended.

        Without its number of tokens (its response was cut short, or has no usage) as many as were
        expected, or as it can have generated in its time if that is more.
        """
        if output_tokens is not None:
            return 1 + request.prompt_tokens + OUTPUT_TOKEN_WEIGHT * int(output_tokens)
        token_s = self._token_s()
        if token_s is None:
            return lease.expected_tokens
        each = self._made(lease, token_s, now)
        if request.max_tokens is not None:
            each = min(each, request.max_tokens)
        return max(lease.expected_tokens, counted_tokens(request, request.cost * each))

    def schedule(self, now: float, free: int, only: ServiceClass | None) -> Schedule | None:
        """When the slots come free: `free` ones now, the others as running requests end.

        `only`: the class whose ends count, None: all but idle ones, whose slots are free for the
        others. None: unknown.
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
        return Schedule([0.0] * free + ends[ended:], self.prompts.left(now))

    def start_s(self, schedule: Schedule, cost: int) -> float | None:
        """Seconds until a request behind those of a schedule gets its slots. None: never."""
        decoding_s = schedule.start(cost)
        return None if decoding_s is None else self._stretched(decoding_s, schedule.prompt_tokens)

    def fill(self, schedule: Schedule, prompt_work: float, tokens: float, sequences: int) -> None:
        """Puts equal sequences behind the others, if their length is known.

        `prompt_work`: prompt tokens of their requests, each as often as it has sequences; `tokens`:
        expected of them, as they count for keys.
        """
        token_s = self._token_s()
        if token_s is not None:
            output = max(0.0, tokens - prompt_work) / OUTPUT_TOKEN_WEIGHT
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
        """Seconds until the engine confirms the end of an aborted request."""
        step_s = self._step_s(0)
        return None if step_s is None else ABORT_STEPS * step_s + REPORT_DELAY_S

    def _step_s(self, more: int) -> float | None:
        """Seconds of a step of all leased sequences and `more`."""
        step_time = self.step_time
        return None if step_time is None else step_time.ms(self._batch(more)) / 1000

    def _token_s(self, more: int = 0) -> float | None:
        """Seconds per token of each of these sequences: a step, or a part of one."""
        step_time = self.step_time
        return None if step_time is None else step_time.token_ms(self._batch(more)) / 1000

    def _batch(self, more: int) -> int:
        return max(1, self._ledger.leased + self._ledger.foreign + more)

    def _prefill_s(self, request: AdmissionRequest) -> float:
        rate = self.prompts.tokens_per_s
        return request.prompt_tokens / rate if rate else 0.0

"""Predicts how long requests take, and when queued ones will start.

Pure: times are seconds of a monotonic clock. Knows the leases, and the output lengths and
durations of earlier requests; predicts from the measured step time, and nothing without one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.output_lengths import OutputLengths
from orch_sidecar.admission.prediction.schedule import Schedule
from orch_sidecar.admission.types import AdmissionRequest, Lease, StepTime
from vllm_plugin.profile import ServiceClass

# The ends of running requests are predicted again after this time, or after any change while few
# are running.
FRESH_S: Final = 0.02
FEW: Final = 32

# A generated token is charged like so many prompt tokens: prompts are computed many at once.
OUTPUT_TOKEN: Final = 2
# Charged in advance, within the limit of the request, while nothing is known of such requests.
_UNKNOWN_OUTPUT: Final = 256

# How far requests may deviate from the measured step time: prompts of others are prefilled
# between their steps, and machines are shared.
_SLOWEST, _FASTEST = 10.0, 0.1
_LEARNING: Final = 0.1
# After this many responses, a few per second are as informative as all of them.
_ENOUGH: Final = 1000
_LEARN_EVERY_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Forecast:
    """Milliseconds from now to a request's slot, to its first token and to its end."""

    start_ms: float
    first_token_ms: float
    end_ms: float


def charged(request: AdmissionRequest, output_tokens: float) -> int:
    """The tokens that a key is charged for a request with so many generated tokens; at least 1."""
    return 1 + request.prompt_tokens + int(OUTPUT_TOKEN * output_tokens)


class ServiceTimes:
    """Predicts the service times of one engine's requests."""

    def __init__(self, ledger: Ledger) -> None:
        self.lengths = OutputLengths()
        self.step_time: StepTime | None = None
        self.prefill_tokens_per_s: float | None = None
        self._ledger = ledger
        self._slowness = 1.0
        self._learned = 0
        self._learned_at = float("-inf")
        # Seconds to the ends of running sequences, as of a moment ago; None: unknown.
        self._ends: list[float] | None = None
        self._built_at = float("-inf")
        self._built_for: ServiceClass | None = None
        self._changed = True

    def invalidate(self) -> None:
        """A request started or ended."""
        self._changed = True

    def completed(
        self, request: AdmissionRequest, elapsed_s: float, output_tokens: float, now: float
    ) -> None:
        """Learns from a request that completed after `output_tokens` (per sequence)."""
        if self._learned > _ENOUGH and now < self._learned_at:
            return
        self._learned += 1
        self._learned_at = now + _LEARN_EVERY_S
        self.lengths.learn(request.service_class, request.max_tokens, output_tokens)
        token_s = self._token_s(request.cost)
        if token_s is None or output_tokens < 2:
            return
        predicted_s = self._prefill_s(request) + output_tokens * token_s
        ratio = elapsed_s / (predicted_s * self._slowness)
        ratio = min(max(ratio, _FASTEST), _SLOWEST)
        self._slowness *= 1 + _LEARNING * (ratio - 1)
        self._slowness = min(max(self._slowness, _FASTEST), _SLOWEST)

    def first_token_s(self, request: AdmissionRequest) -> float | None:
        """Seconds from its slot to its first token."""
        step_s = self._step_s(request.cost)
        return None if step_s is None else self._slowness * (self._prefill_s(request) + step_s)

    def service_s(self, request: AdmissionRequest, *, joins: bool = False) -> float | None:
        """Seconds from its slot to its end.

        `joins`: it takes a free slot, and so enlarges the batch; else it replaces another.
        """
        token_s = self._token_s(request.cost if joins else 0)
        tokens = self.lengths.expected(request.service_class, request.max_tokens)
        if token_s is None or tokens is None:
            return None
        return self._slowness * (self._prefill_s(request) + tokens * token_s)

    def remaining_s(self, request: AdmissionRequest, elapsed_s: float) -> float | None:
        """Seconds to the end of a request that has run for `elapsed_s`."""
        token_s = self._token_s()
        if token_s is None:
            return None
        prefill_s, token_s = self._prefill_s(request) * self._slowness, token_s * self._slowness
        decoding_s = elapsed_s - prefill_s
        tokens = self.lengths.remaining(
            request.service_class, request.max_tokens, max(0.0, decoding_s) / token_s
        )
        return None if tokens is None else tokens * token_s + max(0.0, -decoding_s)

    def charge(self, request: AdmissionRequest) -> int:
        """The tokens that a key is charged for a request in advance, by its expected output."""
        limit = request.max_tokens
        tokens = self.lengths.learned(request.service_class, limit)
        if tokens is None:
            tokens = _UNKNOWN_OUTPUT if limit is None else min(limit, _UNKNOWN_OUTPUT)
        return charged(request, request.cost * tokens)

    def took(self, lease: Lease, output_tokens: float | None, now: float) -> int:
        """The tokens that a key is charged for a request that ended.

        Without its number of tokens (its response was cut short, or has no usage) as many as were
        charged in advance, or as it can have generated in its time if that is more.
        """
        request = lease.request
        assert request is not None
        if output_tokens is None:
            token_s = self._token_s()
            if token_s is None:
                return lease.charge
            decoding_s = now - lease.granted_at - self._slowness * self._prefill_s(request)
            each = max(0.0, decoding_s) / (self._slowness * token_s)
            if request.max_tokens is not None:
                each = min(each, request.max_tokens)
            return max(lease.charge, charged(request, request.cost * each))
        return charged(request, output_tokens)

    def schedule(self, now: float, free: int, only: ServiceClass | None) -> Schedule | None:
        """When the slots come free: `free` ones now, the others as running requests end.

        `only`: the class whose ends count, None: both. None: unknown.
        """
        few = self._ledger.lease_count <= FEW
        stale = now - self._built_at > FRESH_S or (self._changed and few)
        if stale or only is not self._built_for:
            self._build(now, only)
        ends = self._ends
        if ends is None:
            return None
        ended = max(0, len(ends) - self._ledger.leased)  # since then: those expected to end first
        return Schedule([0.0] * free + ends[ended:])

    def mean_service_s(self, prompt_work: float, charge: float, sequences: int) -> float | None:
        """Mean seconds from slot to end of some sequences. None: unknown.

        `prompt_work`: prompt tokens of their requests, each as often as it has sequences; `charge`:
        for their requests.
        """
        token_s, rate = self._token_s(), self.prefill_tokens_per_s
        if token_s is None:
            return None
        prefill_s = prompt_work / rate if rate else 0.0
        output = max(0.0, charge - prompt_work) / OUTPUT_TOKEN
        return self._slowness * (prefill_s + output * token_s) / sequences

    def place(self, schedule: Schedule, request: AdmissionRequest) -> float | None:
        """Puts a request behind the others. Returns the seconds to its start, None: unknown."""
        service_s = self.service_s(request)
        return None if service_s is None else schedule.place(request.cost, service_s)

    def _build(self, now: float, only: ServiceClass | None) -> None:
        self._built_at, self._built_for, self._changed = now, only, False
        self._ends = None
        ends: list[float] = []
        for lease in self._ledger.all():
            request = lease.request
            if request is None or (only is not None and request.service_class is not only):
                continue
            remaining_s = self.remaining_s(request, now - lease.granted_at)
            if remaining_s is None:
                return
            ends += [remaining_s] * request.cost
        self._ends = sorted(ends)

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
        rate = self.prefill_tokens_per_s
        return request.prompt_tokens / rate if rate else 0.0

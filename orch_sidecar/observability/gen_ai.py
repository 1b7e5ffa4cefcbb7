"""OpenTelemetry's conventions for servers of generative models: names, and their histograms.

The conventions are in development (open-telemetry/semantic-conventions-genai, docs/gen-ai/
gen-ai-metrics.md); names and labels are those that Prometheus has for them. Labels come from
closed sets: a model is one that the pool says it serves, and absent otherwise. `pool`, `class`
and `measurement_type` are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client.core import HistogramMetricFamily

from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.refusal import Reason
from orch_sidecar.observability.histogram import Histogram, Traced
from orch_sidecar.observability.record import Outcome, RequestRecord
from vllm_plugin.profile import ServiceClass

PROVIDER: Final = "vllm"

# The bounds that the conventions ask for, seconds.
_DURATION_BUCKETS: Final = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
_FIRST_TOKEN_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_PER_TOKEN_BUCKETS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip

_DURATION: Final = (
    "gen_ai_server_request_duration_seconds",
    "Time from arrival to the end of the answer, of requests that a pool was asked to serve; "
    "error_type is the outcome of those that did not end well.",
)
_FIRST_TOKEN: Final = (
    "gen_ai_server_time_to_first_token_seconds",
    "Time from arrival to the first byte of the answer, in the queue, too: of whole streams. "
    "Not of /v1/responses, whose streams begin before there is a token; once for a shared decode.",
)
_PER_TOKEN: Final = (
    "gen_ai_server_time_per_output_token_seconds",
    "Time from the first byte to the end / (output tokens - 1): of the streams that are in "
    "gen_ai_server_time_to_first_token_seconds, are one sequence of known token count "
    "(orch_answers_total says how many are known), and were never held up by their client.",
)

# Bound once: looking up a member of an enum is slow.
_BULK: Final = ServiceClass.BULK
_OK: Final = Outcome.OK


class Operation:
    """The requests of one operation and class for one model of one pool."""

    __slots__ = ("_duration", "_failed", "_first_token", "_labels", "_per_token")

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._duration = Histogram(_DURATION_BUCKETS)
        self._failed: dict[Outcome | Reason, Histogram] = {}
        self._first_token = Histogram(_FIRST_TOKEN_BUCKETS)
        self._per_token = Histogram(_PER_TOKEN_BUCKETS)

    def ended(self, record: RequestRecord, now: int, traced: Traced | None) -> None:
        """A request has ended, `now`: nanoseconds of the monotonic clock."""
        duration = self._duration
        if record.outcome is not _OK:
            failed = self._failed.get(record.outcome)
            if failed is None:
                failed = self._failed[record.outcome] = Histogram(_DURATION_BUCKETS)
            duration = failed
        duration.observe((now - record.arrived) / 1e9, traced)

    def generated(self, record: RequestRecord, now: int, traced: Traced | None) -> None:
        """The engine has ended an answer well, `now`; once for all requests that share it."""
        first_byte = record.first_byte
        if not record.stream or first_byte is None:
            return
        if not record.endpoint.first_byte_is_token:
            return
        self._first_token.observe((first_byte - record.arrived) / 1e9, traced)
        tokens = record.output_tokens
        if tokens is not None and tokens > 1 and record.cost == 1 and not record.held_up:
            self._per_token.observe((now - first_byte) / 1e9 / (tokens - 1), traced)

    def add_to(
        self,
        durations: HistogramMetricFamily,
        first_tokens: HistogramMetricFamily,
        per_tokens: HistogramMetricFamily,
    ) -> None:
        """Adds its samples to each of the families."""
        self._duration.add_to(durations, self._labels)
        for outcome, distribution in self._failed.items():
            distribution.add_to(durations, {**self._labels, "error_type": outcome.value})
        self._first_token.add_to(first_tokens, self._labels)
        self._per_token.add_to(per_tokens, self._labels)


class GenAi:
    """The histograms of all requests."""

    def __init__(
        self, measurement_type: Callable[[str], str], serves: Callable[[str, str], bool]
    ) -> None:
        """`measurement_type`: that of a pool, by its name. `serves`: whether a pool has a model."""
        self._measurement_type = measurement_type
        self._serves = serves
        self._operations: dict[tuple[str, str, str, bool], Operation] = {}
        # By what is at hand of a request: endpoint, pool, model, whether it is bulk. No model that
        # is not served is in here: a client may name endlessly many.
        self._at_hand: dict[tuple[Endpoint, str | None, str, bool], Operation] = {}

    def of(self, record: RequestRecord) -> Operation:
        """The histograms of a request that has a pool."""
        bulk = record.service_class is _BULK
        operation = self._at_hand.get((record.endpoint, record.pool, record.model, bulk))
        return self._find(record, bulk) if operation is None else operation

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """All families."""
        families = [
            HistogramMetricFamily(name, text, unit="seconds")
            for name, text in (_DURATION, _FIRST_TOKEN, _PER_TOKEN)
        ]
        for operation in self._operations.values():
            operation.add_to(*families)
        return families

    def _find(self, record: RequestRecord, bulk: bool) -> Operation:
        pool = record.pool
        assert pool is not None
        model = record.model if self._serves(pool, record.model) else ""
        key = pool, record.endpoint.operation, model, bulk
        operation = self._operations.get(key)
        if operation is None:
            operation = self._operations[key] = Operation(self._labels(*key))
        self._at_hand[record.endpoint, pool, model, bulk] = operation
        return operation

    def _labels(self, pool: str, operation: str, model: str, bulk: bool) -> dict[str, str]:
        labels = {
            "gen_ai_operation_name": operation,
            "gen_ai_provider_name": PROVIDER,
            "measurement_type": self._measurement_type(pool),
            "pool": pool,
            "class": (_BULK if bulk else ServiceClass.INTERACTIVE).value,
        }
        return {**labels, "gen_ai_request_model": model} if model else labels

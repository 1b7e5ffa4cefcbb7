"""Histograms and counters of requests, by pool and class: a row each; and the histograms of
OpenTelemetry's conventions for servers of generative models.

Pure. The conventions are in development (open-telemetry/semantic-conventions-genai, docs/gen-ai/
gen-ai-metrics.md); names and labels are as in Prometheus. Labels come from closed sets: a model is
a label only if its pool serves it. `pool`, `class` and `measurement_type` are additions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.refusal import Reason
from orch_sidecar.observability.histogram import Histogram, Traces
from orch_sidecar.observability.recent import Ended
from orch_sidecar.observability.record import OK, Outcome, RequestRecord
from vllm_plugin.contracts.profile import INTERACTIVE, ServiceClass

_WAIT_BUCKETS: Final[tuple[float, ...]] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300,
)  # fmt: skip
_FANOUT_BUCKETS: Final = (1, 2, 3, 4, 8, 16, 32, 64, 128)
_ERROR_BUCKETS: Final[tuple[float, ...]] = (
    0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 2, 5,
)  # fmt: skip

# The prediction of a shorter wait is always off by a multiple.
_PREDICTABLE_S: Final = 0.1

Values = Sequence[float | None]
Labelled = tuple[Mapping[str, str], Histogram]

PROVIDER: Final = "vllm"

# The bounds that the conventions recommend, seconds.
_DURATION_BUCKETS: Final[tuple[float, ...]] = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
_FIRST_TOKEN_BUCKETS: Final[tuple[float, ...]] = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
_PER_TOKEN_BUCKETS: Final[tuple[float, ...]] = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip

DURATION: Final = "gen_ai_server_request_duration_seconds"
FIRST_TOKEN: Final = "gen_ai_server_time_to_first_token_seconds"  # noqa: S105 (no password)
PER_TOKEN: Final = "gen_ai_server_time_per_output_token_seconds"  # noqa: S105 (no password)

# By the conventions, all in seconds: by name, what they count.
GEN_AI_FAMILIES: Final[Mapping[str, str]] = {
    DURATION: "Time from arrival to the end of the answer, of requests that were routed to a pool; "
    "error_type is the outcome of those that failed.",
    FIRST_TOKEN: "Time from arrival to the first byte of the answer, including the time in the "
    "queue, of complete streams; not of /v1/responses, whose streams begin before the first "
    "token; once for a shared generation.",
    PER_TOKEN: "Time from the first byte to the end / (output tokens - 1): of the streams in "
    "gen_ai_server_time_to_first_token_seconds that are one sequence with a known number of tokens "
    "(see orch_answers_total) and were never delayed by a slow client.",
}


def _waits(records: Sequence[RequestRecord]) -> Values:
    return [
        None if (at := each.admitted) is None else (at - each.arrived) / 1e9 for each in records
    ]


def _first_bytes(records: Sequence[RequestRecord]) -> Values:
    return [
        None if (at := each.first_byte) is None else (at - each.arrived) / 1e9 for each in records
    ]


def _prediction_errors(records: Sequence[RequestRecord]) -> Values:
    return [None if each.queued is None else _prediction_error(each) for each in records]


def _prediction_error(record: RequestRecord) -> float | None:
    if record.queued is None or record.admitted is None or record.predicted_start_ms is None:
        return None
    waited_s = (record.admitted - record.queued) / 1e9
    if waited_s <= _PREDICTABLE_S:
        return None
    return abs(record.predicted_start_ms / 1000 - waited_s) / waited_s


@dataclass(frozen=True, slots=True)
class HistogramRow:
    """A histogram of admitted requests, by pool and class.

    `values`: of many records, which takes a fraction of the time; None is not observed.
    `shared_once`: counts requests that share a generation once.
    """

    name: str
    text: str
    buckets: tuple[float, ...]
    values: Callable[[Sequence[RequestRecord]], Values]
    shared_once: bool = True


@dataclass(frozen=True, slots=True)
class CounterRow:
    """A counter of complete answers, by pool and class; once if requests share them. `values`: of
    many records; None counts as none."""

    name: str
    text: str
    values: Callable[[Sequence[RequestRecord]], Sequence[int | None]]


HISTOGRAMS: Final = (
    HistogramRow(
        "orch_admission_wait_seconds",
        "Time from arrival to the slot, of admitted requests.",
        _WAIT_BUCKETS,
        _waits,
    ),
    HistogramRow(
        "orch_time_to_first_byte_seconds",
        "Time from arrival to the first byte of the answer's body, of admitted requests.",
        _WAIT_BUCKETS,
        _first_bytes,
        shared_once=False,
    ),
    HistogramRow(
        "orch_prediction_error_ratio",
        "|predicted - actual wait| / actual wait, of admitted requests that waited over 100 ms.",
        _ERROR_BUCKETS,
        _prediction_errors,
    ),
    HistogramRow(
        "orch_fanout_requests",
        "Requests that one generation answered, of generations that several requests can share.",
        _FANOUT_BUCKETS,
        lambda records: [record.fanout or None for record in records],
    ),
)
COUNTERS: Final = (
    CounterRow(
        "orch_input_tokens",
        "Prompt tokens of complete answers that reported them, once for a shared generation.",
        lambda records: [record.input_tokens for record in records],
    ),
    CounterRow(
        "orch_output_tokens",
        "Tokens generated in complete answers that reported them, once for a shared generation; "
        "orch_answers_total counts the answers that did.",
        lambda records: [record.output_tokens for record in records],
    ),
)


class ClassStats:
    """What happened to the admitted requests of one class in one pool."""

    __slots__ = (
        "by_generation",
        "by_request",
        "histograms",
        "totals",
        "with_usage",
        "without_usage",
    )

    def __init__(self) -> None:
        self.histograms = [Histogram(row.buckets) for row in HISTOGRAMS]
        pairs = list(zip(HISTOGRAMS, self.histograms, strict=True))
        self.by_generation = [(row.values, each) for row, each in pairs if row.shared_once]
        self.by_request = [(row.values, each) for row, each in pairs if not row.shared_once]
        self.totals = [0] * len(COUNTERS)
        # Complete answers, by whether the number of their output tokens is known.
        self.with_usage = self.without_usage = 0

    def generations_ended(self, records: Sequence[RequestRecord], traced: Traces) -> None:
        """Counts generations of one outcome, each once for all requests that share it."""
        for values_of, histogram in self.by_generation:
            histogram.observe(values_of(records), traced)
        if records[0].outcome is not OK:
            return
        unknown = [record.output_tokens for record in records].count(None)
        self.without_usage += unknown
        self.with_usage += len(records) - unknown
        for index, row in enumerate(COUNTERS):
            self.totals[index] += sum(filter(None, row.values(records)))

    def requests_ended(self, records: Sequence[RequestRecord], traced: Traces) -> None:
        """Counts requests."""
        for values_of, histogram in self.by_request:
            histogram.observe(values_of(records), traced)


def _per_token_s(record: RequestRecord, now: int) -> float | None:
    """Returns the seconds per token of a stream that ended at `now`; None: they are not counted."""
    tokens, first_byte = record.output_tokens, record.first_byte
    if tokens is None or tokens < 2 or first_byte is None:
        return None
    if record.cost != 1 or record.client_limited:
        return None
    return (now - first_byte) / 1e9 / (tokens - 1)


class Operation:
    """Histograms of the requests of one operation and class for one model of one pool."""

    __slots__ = ("_duration", "_failed", "_first_token", "_labels", "_per_token")

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._duration = Histogram(_DURATION_BUCKETS)
        self._failed: dict[Outcome | Reason, Histogram] = {}
        self._first_token = Histogram(_FIRST_TOKEN_BUCKETS)
        self._per_token = Histogram(_PER_TOKEN_BUCKETS)

    def ended(self, ended: Sequence[Ended], traced: Traces) -> None:
        """Counts requests of one outcome."""
        duration, outcome = self._duration, ended[0][0].outcome
        if outcome is not OK:
            failed = self._failed.get(outcome)
            if failed is None:
                failed = self._failed[outcome] = Histogram(_DURATION_BUCKETS)
            duration = failed
        seconds = [(now - record.arrived) / 1e9 for record, now in ended]
        duration.observe(seconds, traced)

    def generated(self, ended: Sequence[Ended], traced: Traces) -> None:
        """Counts answers of one endpoint that the engine completed, all or none of them streams;
        once if requests share them."""
        first = ended[0][0]
        if first.stream and first.endpoint.first_byte_is_token:
            seconds = [record.seconds_to(record.first_byte) for record, _ in ended]
            self._first_token.observe(seconds, traced)
            self._per_token.observe([_per_token_s(record, now) for record, now in ended], traced)

    def histograms(self, name: str) -> Iterable[Labelled]:
        """Returns its histograms in the family of that name, each with its labels."""
        if name == FIRST_TOKEN:
            yield self._labels, self._first_token
        elif name == PER_TOKEN:
            yield self._labels, self._per_token
        else:
            yield self._labels, self._duration
            for outcome, duration in self._failed.items():
                yield {**self._labels, "error_type": outcome.value}, duration


class GenAi:
    """Histograms of all requests, by the conventions."""

    def __init__(
        self, measurement_type: Callable[[str], str], serves: Callable[[str, str], bool]
    ) -> None:
        """`measurement_type`: by name of a pool. `serves`: whether a pool serves a model."""
        self._measurement_type = measurement_type
        self._serves = serves
        # By pool; by operation, model, and the rank of the class.
        self._operations: defaultdict[str, dict[tuple[str, str, int], Operation]]
        self._operations = defaultdict(dict)
        # By endpoint, pool, model, and the rank of the class. Contains only models that are
        # served: clients can name an unlimited number of others.
        self._cache: dict[tuple[Endpoint, str | None, str, int], Operation] = {}

    def of(self, record: RequestRecord) -> Operation:
        """Returns the histograms of a request that was routed to a pool."""
        rank = (record.service_class or INTERACTIVE).rank
        operation = self._cache.get((record.endpoint, record.pool, record.model, rank))
        return self._find(record, rank) if operation is None else operation

    def histograms(self, name: str, pool: str) -> Iterable[Labelled]:
        """Returns the histograms of a pool in the family of that name, each with its labels."""
        for operation in self._operations.get(pool, {}).values():
            yield from operation.histograms(name)

    def _find(self, record: RequestRecord, rank: int) -> Operation:
        pool = record.pool
        assert pool is not None
        model = record.model if self._serves(pool, record.model) else ""
        key = record.endpoint.operation, model, rank
        operation = self._operations[pool].get(key)
        if operation is None:
            operation = self._operations[pool][key] = Operation(self._labels(pool, *key))
        self._cache[record.endpoint, pool, model, rank] = operation
        return operation

    def _labels(self, pool: str, operation: str, model: str, rank: int) -> dict[str, str]:
        labels = {
            "gen_ai_operation_name": operation,
            "gen_ai_provider_name": PROVIDER,
            "measurement_type": self._measurement_type(pool),
            "pool": pool,
            "class": tuple(ServiceClass)[rank].value,
        }
        return {**labels, "gen_ai_request_model": model} if model else labels

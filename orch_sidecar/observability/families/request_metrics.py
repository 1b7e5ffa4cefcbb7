"""Histograms and counters of requests, by pool and class: a row each.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from orch_sidecar.observability.histogram import Histogram, Traces
from orch_sidecar.observability.record import OK, RequestRecord

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

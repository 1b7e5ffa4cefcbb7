"""What the live document shows of the requests that ended last: their rows, and how their latencies
compare with the SLOs of their class.

Times are nanoseconds of the monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import Any, Final

from orch_sidecar.api.refusal import BY_REASON, Reason
from orch_sidecar.observability.recent import Ended, MeanBatches, RecentRequests
from orch_sidecar.observability.record import Outcome, RequestRecord
from vllm_plugin.contracts.profile import AdmissionRules, ServiceClass

MAX_ROWS: Final = 100
WINDOW_S: Final = 60  # of latencies
_QUANTILES: Final = (0.5, 0.95)

Row = dict[str, Any]

_ENDS: Final[dict[Outcome, str]] = {
    Outcome.OK: "",
    Outcome.CLIENT_ERROR: "the engine found a fault in the request",
    Outcome.ENGINE_ERROR: "the engine failed it",
    Outcome.CANCELLED: "the client left",
}


def end_of(outcome: Outcome | Reason) -> str:
    """Returns why a request was not served, for a table; empty if it was."""
    return BY_REASON[outcome].text if isinstance(outcome, Reason) else _ENDS[outcome]


class EndedRequests:
    """The rows of the last requests."""

    def __init__(self, mean_batches: MeanBatches, serves: Callable[[str, str], bool]) -> None:
        """`serves`: whether a pool serves a model; a client may name any other text as a model."""
        self._mean_batches = mean_batches
        self._serves = serves
        self._rows: deque[Row] = deque(maxlen=MAX_ROWS)
        self._seen = 0
        self._pending: list[tuple[Row, Ended]] = []

    @property
    def rows(self) -> list[Row]:
        """The last rows, the newest at the end."""
        return list(self._rows)

    def update(self, recent: RecentRequests, now: int) -> list[Row]:
        """Takes the records that ended since the last call. Returns the rows that are new, and
        those whose mean batch is known now."""
        new = recent.total - self._seen
        self._seen = recent.total
        ended = recent.all()[-new:] if new else []
        changed = self._complete(now)
        first = recent.total - len(ended) + 1
        for number, each in enumerate(ended, first):
            if not each[0].endpoint.admitted:
                continue
            row = self._row(number, *each)
            self._rows.append(row)
            changed.append(row)
            if self._mean_batches.is_pending(each, now):
                self._pending.append((row, each))
            else:
                row["batch"] = self._mean_batches.of(each)
        return changed[-MAX_ROWS:]

    def _complete(self, now: int) -> list[Row]:
        """Sets the mean batches that have become known."""
        pending = self._pending[-MAX_ROWS:]
        self._pending = [each for each in pending if self._mean_batches.is_pending(each[1], now)]
        changed = []
        for row, ended in pending:
            if (batch := self._mean_batches.of(ended)) is not None:
                row["batch"] = batch
                changed.append(row)
        return changed

    def _row(self, number: int, record: RequestRecord, at: int) -> Row:
        service_class = record.service_class
        known = record.pool is not None and self._serves(record.pool, record.model)
        return {
            "number": number,
            "id": record.id,
            "pool": record.pool,
            "class": None if service_class is None else service_class.value,
            "key": record.key,
            "model": record.model if known else None,
            "route": record.endpoint.path,
            "ended_at": record.at_ns(at) // 10**6,
            "outcome": record.outcome.value,
            "status": record.status,
            "text": end_of(record.outcome),
            "wait_ms": record.ms_to(record.admitted),
            "first_byte_ms": record.ms_to(record.first_byte),
            "total_ms": record.ms_to(at),
            "prompt_tokens": record.input_tokens,
            "tokens": record.tokens,
            "estimated": record.output_tokens is None,
            "batch": None,
            "coalesced": record.coalesced,
            "trace_id": record.trace_text,
        }


def quantiles(values: Sequence[float]) -> list[float] | None:
    """Returns the median and the 95th percentile (nearest rank); None without values."""
    if not values:
        return None
    ranked = sorted(values)
    return [round(ranked[max(0, ceil(q * len(ranked)) - 1)], 2) for q in _QUANTILES]


def latency_by_class(
    ended: Iterable[Ended],
    classes: Sequence[ServiceClass],
    rules: AdmissionRules,
    now: int,
) -> dict[str, Any]:
    """Returns `latency` of a pool (see `live_document`).

    Counted are complete answers, once if several requests share one; their times are those of
    streams whose first byte is a token.
    """
    recent = [
        (record, at)
        for record, at in ended
        if record.outcome is Outcome.OK and not record.coalesced and now - at <= WINDOW_S * 1e9
    ]
    return {
        each.value: _entry(
            [(record, at) for record, at in recent if record.service_class is each], rules, each
        )
        for each in classes
    }


def _entry(
    recent: list[Ended], rules: AdmissionRules, service_class: ServiceClass
) -> dict[str, Any]:
    slos = rules.of(service_class)
    first, per_token, generated = list[float](), list[float](), 0
    for record, at in recent:
        tokens = record.output_tokens or record.generated_tokens or 0
        generated += tokens
        first_byte = record.first_byte
        if not record.stream or first_byte is None:
            continue
        if not record.endpoint.first_byte_is_token:
            continue
        first.append((first_byte - record.arrived) / 1e6)
        if tokens > 1 and record.cost == 1 and not record.client_limited:
            per_token.append((at - first_byte) / 1e6 / (tokens - 1))
    return {
        "answers": len(recent),
        "tokens": generated,
        "requests": len(first),
        "ttft_ms": quantiles(first),
        "ttft_slo_ms": slos.ttft_p95_ms,
        "tpot_ms": quantiles(per_token),
        "tpot_slo_ms": slos.tpot_p95_ms,
    }

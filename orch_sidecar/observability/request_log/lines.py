"""The line of a request: ids, times and counts, and nothing of its prompt or its answer. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from orch_sidecar.api.json_body import well_formed
from orch_sidecar.observability.record import Outcome, RequestRecord

# A client may send any text as the name of a model.
_MAX_MODEL_CHARACTERS: Final = 128


def line_of(record: RequestRecord, ended: int, batch_mean: float | None) -> bytes:
    """Returns the line of a request that `ended` at that time of the monotonic clock, in
    nanoseconds. `batch_mean`: of the engine's decode steps while it ran."""
    identity, labels, counted = record.identity, record.labels or {}, record.output_tokens
    streams = record.stream and identity.endpoint.first_byte_is_token
    arrived = datetime.fromtimestamp(identity.arrived_ns / 1e9, UTC)
    return msgspec.json.encode(
        {
            "time": arrived.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "id": identity.id,
            "request_id": identity.request_id,
            "correlation_id": identity.correlation_id,
            "key": record.key,
            "method": identity.method[:20],
            "route": identity.endpoint.path,
            "model": well_formed(record.model[:_MAX_MODEL_CHARACTERS]) or None,
            "pool": record.pool,
            "measurement_type": labels.get("measurement_type"),
            "class": record.service_class,
            "outcome": record.outcome,
            "status": record.status or None,
            "stream": record.stream,
            "sequences": record.cost,
            "position": record.queue_position if record.queued is not None else None,
            "wait_ms": _ms(record, record.admitted),
            "ttft_ms": _ms(record, record.first_byte) if streams else None,
            "total_ms": _ms(record, ended),
            "prompt_tokens": record.input_tokens,
            "tokens": record.generated_tokens if counted is None else counted,
            "tokens_estimated": counted is None and record.generated_tokens is not None,
            "batch_mean": batch_mean if record.outcome is Outcome.OK else None,
            "coalesced": record.coalesced,
            "scenario": record.scenario,
            "trace_id": f"{record.trace_id:032x}" if record.trace_id else None,
        }
    )


def _ms(record: RequestRecord, at: int | None) -> float | None:
    """Milliseconds from the arrival of a request to a moment; None if there was none."""
    return None if at is None else round((at - record.identity.arrived) / 1e6, 1)

"""Describes the status of one request, for its client and for operators."""

from __future__ import annotations

from typing import Any, Final

from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.proxy.admit import generated_tokens
from orch_sidecar.proxy.request import Request

# Every answer has the same fields: those that are not known, or not yet, are null.
_FIELDS: Final = (
    "id", "state", "route", "model", "class", "pool", "measurement_type", "coalesced", "age_ms",
    "position", "predicted_start_ms", "waits_for", "wait_ms", "first_byte_ms", "batch", "tokens",
)  # fmt: skip


def document(request_id: str, request: Request | None, pools: PoolRegistry) -> dict[str, Any]:
    """Returns the status of a request; None: it has ended.

    Its `state` is `arriving` (its body is read, a pool is chosen), `queued`, `running` or `ended`.
    """
    fields: dict[str, Any] = dict.fromkeys(_FIELDS)
    fields |= {"id": request_id, "state": "ended"}
    if request is None:
        return fields
    # A generation that several requests share waits and runs for all of them.
    served, own = request.attempt.generation or request, request.record
    record = served.record
    fields |= {
        "state": "arriving",
        "route": own.endpoint.path,
        "model": own.model or None,
        "class": record.service_class,
        "coalesced": own.coalesced,
        "age_ms": round(own.spent_ms()),
        "first_byte_ms": _ms(own.seconds_to(own.first_byte)),
    }
    if record.pool is None:
        return fields
    pool = pools[record.pool]
    fields |= {"pool": pool.name, "measurement_type": pool.profile.measurement_type.value}
    if served.attempt.waiting is not None:
        return fields | {"state": "queued", **_queued(served, pool)}
    if record.admitted is not None or served.attempt.response is not None:
        return fields | {"state": "running", **_running(request, served, pool)}
    return fields


def _queued(request: Request, pool: Pool) -> dict[str, Any]:
    position, start_ms = request.place(pool.connections.loop.time())
    first = pool.status().admission.waited_for
    ahead = f"{position} request{'' if position == 1 else 's'} before it"
    if not position:
        text = first
    elif first is None:
        text = ahead
    else:
        text = f"{ahead}; the first of them waits for {first}"
    return {"position": position, "predicted_start_ms": start_ms, "waits_for": text}


def _running(request: Request, served: Request, pool: Pool) -> dict[str, Any]:
    admitted = request.record.admitted or served.record.admitted
    response, known = served.attempt.response, pool.watcher.document or {}
    tokens = None
    if response is not None and response.status:
        tokens = generated_tokens(served.record, response)
    elif served.record.stream:
        tokens = 0
    return {
        "wait_ms": _ms(request.record.seconds_to(admitted)),
        "batch": known.get("running"),
        "tokens": tokens,
    }


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else max(0, round(1000 * seconds))

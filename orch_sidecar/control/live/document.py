"""Builds the entry of a pool in the live document (see the package).

Pure: `now` is seconds of the clock of the snapshot; `wall_s` is added to it for Unix times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.queue_places import Place
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import Lease, QueuedRequest
from orch_sidecar.control.live import words
from orch_sidecar.engine_state import report
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.pools.status import PoolStatus
from vllm_plugin.contracts.profile import ServiceClass

MAX_QUEUED: Final = 50  # of each class
MAX_ADMITTED: Final = 100
_MAX_POINTS: Final = 48  # more of the curve are merged
_FIT: Final = ("t0_ms", "c_ms", "alpha", "largest", "good", "traffic")  # of a StepTime

Names = Mapping[bytes, str]


class Clock(NamedTuple):
    """`now`: seconds of the event loop; `wall_s`: what it lacks to Unix time."""

    now: float
    wall_s: float

    def at(self, seconds: float) -> int:
        """Returns a moment of the event loop as Unix milliseconds."""
        return round(1000 * (seconds + self.wall_s))


class Queued(NamedTuple):
    """A queued request; `id`: its own."""

    id: str
    queued: QueuedRequest
    place: Place


class Admitted(NamedTuple):
    """A request with slots. `first_byte_s`: when its answer began, by the loop's clock.
    `first_byte_is_token`: so that the engine reads its prompt until then."""

    id: str
    lease: Lease
    first_byte_s: float | None
    first_byte_is_token: bool


def slots(ledger: Ledger) -> dict[str, int]:
    """Returns the slots by their owners. Those of foreign sequences may exceed what is left."""
    closing: dict[ServiceClass | None, int] = {None: 0, **dict.fromkeys(ServiceClass, 0)}
    for lease in ledger.all():
        if lease.closing:
            closing[None if lease.request is None else lease.request.service_class] += lease.cost
    return {
        "total": ledger.slots_total,
        "free": max(0, ledger.room),
        **{each.value: ledger.of(each) - closing[each] for each in ServiceClass},
        "foreign": ledger.foreign,
        "closing": sum(closing.values()),
    }


def curve(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the measured points of the step time, and the engine's fit."""
    decoded = sorted(report.decode_steps_of(document) or [])
    width = -(-len(decoded) // _MAX_POINTS) or 1
    points = []
    for first in range(0, len(decoded), width):
        group = [each for each in decoded[first : first + width] if each[1]]
        steps = sum(count for _, count, _ in group)
        if steps:
            batch = sum(size * count for size, count, _ in group) / steps
            ms = 1000 * sum(seconds for _, _, seconds in group) / steps
            points.append([round(batch, 1), round(ms, 3), steps])
    fit = report.step_time_of(document)
    return {
        "points": points,
        "fit": None if fit is None else {name: getattr(fit, name) for name in _FIT},
    }


def keys(queues: Queues, names: Names) -> list[dict[str, Any]]:
    """Returns the keys that have requests, or had some, by class."""
    return [
        {
            "class": service_class.value,
            "key": name,
            "queued": len(share.queue),
            "running": share.running,
            "share": served,
        }
        for service_class, name, share, served in queues.shares(names)
    ]


def queue(queued: Iterable[Queued], names: Names, clock: Clock) -> list[dict[str, Any]]:
    """Returns the rows of queued requests, which are in the order of their dispatch."""
    return [
        {
            "id": each.id,
            "class": each.queued.request.service_class.value,
            "key": names.get(each.queued.request.key),
            "cost": each.queued.request.cost,
            "position": each.place.position,
            "queued_at": clock.at(each.queued.arrived),
            "starts_at": None if each.place.starts_at is None else clock.at(each.place.starts_at),
            "expires_at": clock.at(each.queued.expires_at),
        }
        for each in queued
    ]


def admitted(requests: Iterable[Admitted], names: Names, clock: Clock) -> list[dict[str, Any]]:
    """Returns the rows of requests that have slots."""
    rows = []
    for each in requests:
        request = each.lease.request
        assert request is not None, "a request of this sidecar"
        rows.append(
            {
                "id": each.id,
                "class": request.service_class.value,
                "key": names.get(request.key),
                "cost": each.lease.cost,
                "admitted_at": clock.at(each.lease.granted_at),
                "first_byte_at": None if each.first_byte_s is None else clock.at(each.first_byte_s),
                "phase": _phase(each),
            }
        )
    return rows


def _phase(admitted: Admitted) -> str | None:
    if not admitted.first_byte_is_token:
        return None
    return "prompt" if admitted.first_byte_s is None else "generation"


def pool_entry(pool: PoolStatus, ledger: Ledger) -> dict[str, Any]:
    """Returns the entry of a pool, without rates, latency and the lists of its requests: so it is
    of a pool that has no address."""
    engine, status = pool.document, pool.admission
    drain = status.draining
    ready = pool.state is PoolState.READY
    version = engine.get("engine_version")
    return {
        "name": pool.name,
        "profile": pool.profile.name,
        "measurement_type": pool.profile.measurement_type.value,
        "tier": pool.tier,
        "models": list(pool.models),
        "engine": f"{engine.get('engine', 'vllm')} {version}" if version else None,
        "gpu": engine.get("gpu"),
        "weights": engine.get("weights"),
        "state": pool.state.value,
        "since_at": round(1000 * pool.since_s) or None,
        "message": "" if ready else pool.message,
        "advice": words.advice(pool),
        "drain": None
        if drain is None
        else {"ordered_by": drain.ordered_by.value, "since_at": round(1000 * drain.since_s)},
        "slots": slots(ledger),
        "limits": {each.value: status.limits.batch(each) for each in status.classes},
        "batches": engine.get("last_batches", []),
        "decode_steps": sum(steps for _, steps, _ in report.decode_steps_of(engine) or ()),
        "running": engine.get("running", 0),
        "prefilling": engine.get("prefilling", 0),
        "curve": curve(engine),
        "kv": {
            "usage": engine.get("kv_cache_usage"),
            "tokens": engine.get("kv_tokens_total"),
            "preemptions": engine.get("preemptions_total", 0),
        },
        "violations": status.violations,
        "rates": {"tokens_per_s": None, "prompt_tokens_per_s": None, "busy": None},
        "latency": {},
        "waits": words.waits(status),
        "queued": pool.queued,
        "keys": [],
        "queue": [],
        "admitted": [],
    }


Rows = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def with_rows(pools: Iterable[Mapping[str, Any]], shown: Rows) -> list[dict[str, Any]]:
    """Returns copies of entries with what is shown of their rows."""
    rows = ("keys", "queue", "admitted")
    return [{**pool} | {name: shown(pool[name]) for name in rows} for pool in pools]

"""The live document: what this sidecar shows to people, as a stream of events (SSE).

`GET /v1/live` serves it to the page (`/ui`) and to `orch top`. One producer builds it for all
readers, a few times per second, and only while there is a reader:

    event: snapshot    the whole document: the first event, and again for a reader that fell behind
    event: update      the members that changed; of `requests` only those that ended since
    : nothing new      a comment, every 2 s without a change: the stream is alive

    {
      "at": 1795425300123,            # of the sidecar's clock; all `..at` are Unix milliseconds
      "operator": true,               # operators' listener: requests can be cancelled by their ids,
                                      #   pools drained; else ids are cut to 8 digits
      "trace_url": null,              # ORCH_TRACE_URL, with "{trace_id}" in it
      "sidecar": {"version": "0.1.0", "run": "1f0c…", "started_at": 1795425000000,
                  "state": "ready", "keys": false},       # run: of this start; keys: API keys used
      "pools": [POOL, ...],
      "batches": [BATCH, ...],        # that have not ended; absent where ORCH_BATCHES is unset
      "requests": [REQUEST, ...]      # the last 100 that ended, the newest at the end
    }
    BATCH = {"batch": "batch_18ec…", "key": null, "status": "in_progress", "total": 3000,
             "completed": 1200, "failed": 3,        # rows, of all sidecars of the database
             "rows_per_s": 41.5, "ends_at": …}      # of the last minute, and then; or null

    POOL = {
      "name": "cloud", "profile": "cloud", "measurement_type": "batched_online",
      "tier": false,                  # it is a sidecar itself
      "models": ["tiny"], "engine": "vllm 0.32.0", "gpu": "…", "weights": "…",
      "state": "ready", "since_at": 1795425010000,   # or absent; since when it is ready, or not
      "message": "", "advice": "",    # not ready: why; and what to do about it, or about an SLO
                                      #   per token that no batch keeps
      "drain": null,                  # {"ordered_by": "operator", "since_at": …}
      "slots": {"total": 8, "free": 1, "interactive": 4, "bulk": 1, "idle": 1, "foreign": 0,
                "closing": 1},
      "limits": {"interactive": 8, "bulk": 8, "idle": 8},  # sequences that keep the SLO per token
      "batches": [3, 4, 4],           # of the last 120 decode steps, the newest at the end
      "decode_steps": 4711,           # since the engine's start: how many of them are new
      "running": 6, "prefilling": 0,  # sequences in the engine, and those that still read prompts
      "curve": {"points": [[batch, ms, steps], ...],  # mean step time by batch, since its start
                "fit": {"t0_ms": 9.1, "c_ms": 1.2, "alpha": 0.8, "largest": 8, "good": true,
                        "traffic": 1.1}},             # or null
      "kv": {"usage": 0.31, "tokens": 262144, "preemptions": 0},      # usage: 0 to 1, or null
      "violations": 0,                # leases or sequences beyond the slots: never right
      "rates": {"tokens_per_s": 812.0, "prompt_tokens_per_s": 90.5, "busy": 0.97},     # or nulls
      "latency": {"interactive": {"answers": 52, "tokens": 3120,    # complete, of the last 60 s
                  "requests": 40,     # streams among them, of which the times are
                  "ttft_ms": [p50, p95], "ttft_slo_ms": 10000, "tpot_ms": [p50, p95],
                  "tpot_slo_ms": 200}, "bulk": {…}},  # pairs and slos are null without one
      "waits": null,                  # what the head of the queue waits for:
                                      #   {"reason": "slot", "text": "a slot: all 8 are in use"}
      "queued": {"interactive": 2, "bulk": 0, "idle": 0},
      "keys": [{"class": "interactive", "key": "chat", "queued": 2, "running": 1, "share": 0.5}],
      "queue": [QUEUED, ...],         # the first 50 of each class, in the order of their dispatch
      "admitted": [ADMITTED, ...]     # the first 100 that have slots, the oldest at the beginning
    }
    QUEUED = {"id": "…", "class": "interactive", "key": null, "cost": 1, "position": 0,
              "queued_at": …, "starts_at": …, "expires_at": …}   # starts_at: predicted, or null
    ADMITTED = {"id": "…", "class": "bulk", "key": null, "cost": 1, "admitted_at": …,
                "first_byte_at": null,
                "phase": "prompt"}       # or "generation"; null: unknown, as nothing tells
    REQUEST = {"number": 17, "id": "…", "pool": "cloud", "class": "interactive", "key": null,
               "model": "tiny", "route": "/v1/completions", "ended_at": …, "outcome": "ok",
               "status": 200,
               "text": "",             # of a refusal or a failure: its reason in words
               "wait_ms": 12.1, "first_byte_ms": 80.2, "total_ms": 912.0,     # since its arrival
               "prompt_tokens": 12, "tokens": 64,   # estimated: by the pieces of its stream, as
               "estimated": false,                  #   the engine did not report its usage
               "batch": 3.9,           # mean while it ran, by the engine's counts of each second:
                                       #   null at first, and the row comes again when it is known
               "coalesced": false, "trace_id": null}

Neither prompts nor answers nor API keys are in it: keys appear by their names in the key file. A
client with a key gets its own rows alone, of `keys`, `queue`, `admitted` and `requests`. A model is
named only if the pool serves it.

Pure: `now` is seconds of the clock of the snapshot; `wall_s` is added to it for Unix times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from orch_sidecar.admission.availability import OrderedBy
from orch_sidecar.admission.ledger import Ledger
from orch_sidecar.admission.prediction.forecast import Place
from orch_sidecar.admission.queues import Queues
from orch_sidecar.admission.types import Lease, QueuedRequest
from orch_sidecar.engine_state import report
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.pools.status import AdmissionStatus, PoolStatus
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
        "advice": advice(pool),
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
        "waits": waits(status),
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


# What the head of the queue waits for while the engine takes no requests.
ENGINE: Final = "engine"

_ADVICE: Final = {
    PoolState.STARTING: "Start the engine, if it is not starting: `orch engine --profile "
    "{profile} MODEL`. Loading a model takes from seconds to minutes.",
    PoolState.PAUSED: "Resume it where it was paused; until then its requests wait.",
    PoolState.ASLEEP: "Wake it up where it was put to sleep: `POST /wake_up` at the engine.",
    PoolState.STALE: "Look at the engine's log and at the network in between. The sidecar tries "
    "again four times a second.",
    PoolState.STALLED: "Look at the engine's log; if it does not go on by itself, restart it.",
    PoolState.DOWN: "Start the engine again: the sidecar finds it within a second, and nothing "
    "else has to be restarted.",
    PoolState.UNUSABLE: "Correct what the message names, then restart the engine.",
    PoolState.ABSENT: "Start a replica, or check the name: the sidecar looks its addresses up "
    "every second.",
}
_OUT_OF_REACH: Final = (
    "Raise tpot_p95_ms of interactive requests in the profile, or use a faster engine: this one "
    "cannot keep it, not even for one request at a time. Until then it serves as many as it can."
)
_DRAINING: Final = {
    OrderedBy.OPERATOR: "An operator has drained it: Resume makes it take requests again.",
    OrderedBy.ENGINE_STOP: "Its engine is about to stop; it takes requests again when the next one "
    "reports.",
    OrderedBy.SHUTDOWN: "This sidecar is shutting down.",
}


def waits(admission: AdmissionStatus) -> dict[str, str] | None:
    """Returns what the head of the queue waits for: `reason`, a name, and `text`, which completes
    "it waits for". None: nothing is queued, or nothing blocks it."""
    text = admission.waited_for if admission.queue_depth else None
    if text is None:
        return None
    blocked_by = None if admission.unavailable is not None else admission.blocked_by
    return {"reason": ENGINE if blocked_by is None else blocked_by.reason, "text": text}


def advice(pool: PoolStatus) -> str:
    """Returns what to do about the engine of a pool; empty for one that keeps its SLOs."""
    admission = pool.admission
    if admission.draining is not None:
        return _DRAINING[admission.draining.ordered_by]
    if pool.state is PoolState.READY and admission.limits.out_of_reach:
        return _OUT_OF_REACH
    return _ADVICE.get(pool.state, "").format(profile=pool.profile.name)

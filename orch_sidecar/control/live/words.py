"""What the page and `orch top` write in words: what to do about an engine that is away, and why a
request was not served.

Pure. For people who have never heard of a slot: short, and without the names of this code.
"""

from __future__ import annotations

from typing import Final

from orch_sidecar.admission.draining import OrderedBy
from orch_sidecar.admission.status import AdmissionStatus
from orch_sidecar.api.refusal import Reason
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.observability.record import Outcome
from orch_sidecar.pools.status import PoolStatus

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
}
ABSENT_ADVICE: Final = (
    "Start a replica, or check the name: the sidecar looks its addresses up every second."
)
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

_ENDS: Final[dict[Outcome | Reason, str]] = {
    Outcome.OK: "",
    Outcome.CLIENT_ERROR: "the engine found a fault in the request",
    Outcome.ENGINE_ERROR: "the engine failed it",
    Outcome.CANCELLED: "the client left",
    Reason.INVALID_REQUEST: "malformed",
    Reason.INFEASIBLE: "no pool could ever serve it",
    Reason.COST_EXCEEDS_SLOTS: "more sequences than there are slots",
    Reason.NOT_FOUND: "no such model or path",
    Reason.FORBIDDEN: "not allowed",
    Reason.METHOD_NOT_ALLOWED: "wrong method",
    Reason.BODY_TOO_LARGE: "its body is too large",
    Reason.BODY_TIMEOUT: "its body did not arrive in time",
    Reason.UNSUPPORTED_ENCODING: "its body is compressed",
    Reason.LEASE_SPENT: "the parent's lease was used before",
    Reason.UNAUTHORIZED: "no API key, or an unknown one",
    Reason.CLASS_FORBIDDEN: "its key is for bulk requests only",
    Reason.COST_EXCEEDS_KEY: "more sequences than its key may have",
    Reason.QUEUE_FULL: "the queue was full",
    Reason.QUEUE_FULL_DROP_LRU: "pushed out of a full queue",
    Reason.QUEUE_TIMEOUT: "would wait, or waited, too long",
    Reason.SLO_MISS: "its first token would be too late for the SLO",
    Reason.DEADLINE_MISS: "its first token would miss its deadline",
    Reason.DO_NOT_QUEUE: "no slot was free, and it asked not to wait",
    Reason.KEY_CONCURRENCY: "its key has as many requests as it may",
    Reason.KEY_REQUESTS: "its key has used its requests of this minute",
    Reason.KEY_TOKENS: "its key has used its tokens of this minute",
    Reason.READER_LIMIT: "too many streams of the state",
    Reason.ENGINE_STARTING: "the engine was starting",
    Reason.ENGINE_DOWN: "the engine was down",
    Reason.ENGINE_STALE: "the engine's state was unknown",
    Reason.ENGINE_STALLED: "the engine made no progress",
    Reason.ENGINE_PAUSED: "the engine was paused",
    Reason.ENGINE_WITHOUT_PLUGIN: "the engine runs without the orch plugin",
    Reason.ENGINE_REFUSES_KEY: "the engine rejects the sidecar's key",
    Reason.PROFILE_MISMATCH: "engine and sidecar have different profiles",
    Reason.API_VERSION_MISMATCH: "engine and sidecar do not fit together",
    Reason.NO_POOL: "no pool could take it",
    Reason.DRAINING: "the pool was draining",
    Reason.BODY_BUDGET_FULL: "too many large requests at once",
    Reason.ENGINE_FAILED: "the engine was lost",
    Reason.ENGINE_TIMEOUT: "the engine went silent",
    Reason.CLIENT_STALLED: "the client stopped reading",
    Reason.CANCELLED: "cancelled",
    Reason.INTERNAL_ERROR: "a fault of the sidecar: see its log",
}


def end_of(outcome: Outcome | Reason) -> str:
    """Returns why a request was not served, for a table; empty if it was."""
    return _ENDS[outcome]


def waits(admission: AdmissionStatus) -> dict[str, str] | None:
    """Returns what the head of the queue waits for: `reason`, a name, and `text`, which completes
    "it waits for". None: nothing is queued, or nothing blocks it."""
    text = admission.waits_for if admission.queue_depth else None
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

"""Writes the advice of the page and `orch top`: what to do about an absent engine, and why a
request was not served.

Pure. For people who have never heard of a slot: short, and without the names of this code.
"""

from __future__ import annotations

from typing import Final

from orch_sidecar.admission.draining import OrderedBy
from orch_sidecar.admission.status import AdmissionStatus
from orch_sidecar.api.errors import BY_REASON
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

_ENDS: Final[dict[Outcome, str]] = {
    Outcome.OK: "",
    Outcome.CLIENT_ERROR: "the engine found a fault in the request",
    Outcome.ENGINE_ERROR: "the engine failed it",
    Outcome.CANCELLED: "the client left",
}


def end_of(outcome: Outcome | Reason) -> str:
    """Returns why a request was not served, for a table; empty if it was."""
    return BY_REASON[outcome].text if isinstance(outcome, Reason) else _ENDS[outcome]


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

"""What the sidecar knows of an engine, and why an engine takes no requests.

Pure. Whatever is not `ready` admits nothing; the message of an outage names cause and remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from orch_sidecar.api.refusal import Reason
from vllm_plugin.profile import Profile

# Texts of an engine, as far as messages show them.
_STATE_CHARACTERS: Final = 40
_MESSAGE_CHARACTERS: Final = 400


class EngineState(StrEnum):
    """The states of an engine as the sidecar sees it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    PAUSED = "paused"  # an operator has paused or reconfigures it; its API server answers
    ASLEEP = "asleep"  # an operator has put it to sleep; its API server answers
    STALE = "stale"
    STALLED = "stalled"  # it answers, but what is in it makes no progress
    DOWN = "down"
    UNUSABLE = "unusable"  # it answers, but not as an engine that this sidecar can serve


# In these the state stream is open, and the engine answers questions.
ANSWERING: Final = frozenset(
    {
        EngineState.READY,
        EngineState.DRAINING,
        EngineState.PAUSED,
        EngineState.ASLEEP,
        EngineState.STALLED,
    }
)

_REASONS: Final = {
    EngineState.STARTING: Reason.ENGINE_STARTING,
    EngineState.DRAINING: Reason.ENGINE_DOWN,
    EngineState.PAUSED: Reason.ENGINE_PAUSED,
    EngineState.ASLEEP: Reason.ENGINE_PAUSED,
    EngineState.STALE: Reason.ENGINE_STALE,
    EngineState.STALLED: Reason.ENGINE_STALLED,
    EngineState.DOWN: Reason.ENGINE_DOWN,
    EngineState.UNUSABLE: Reason.ENGINE_DOWN,
}


@dataclass(frozen=True, slots=True)
class Outage:
    """Why an engine takes no requests: the state it is in, the reason and a text for clients.

    `detail`: for the log alone. It may name addresses, which are no business of clients.
    """

    state: EngineState
    reason: Reason
    message: str
    detail: str = ""


def outage_of(document: Mapping[str, Any], profile: Profile, engine: str) -> Outage | None:
    """The outage that a state document reports; None where the engine is ready for `profile`.

    `engine`: how messages call it. A state that this version does not know counts as paused: the
    engine answers, and does not say that it is ready.
    """
    theirs = (document["profile"], document["measurement_type"])
    ours = (profile.name, profile.measurement_type.value)
    if theirs != ours:
        return Outage(
            EngineState.UNUSABLE,
            Reason.PROFILE_MISMATCH,
            f"{engine} obeys profile {theirs[0]!r} ({theirs[1]}), this sidecar has "
            f"{ours[0]!r} ({ours[1]}): give both the same ORCH_PROFILE",
        )
    reported = document.get("state", "ready")
    if reported == "ready":
        return None
    try:
        state = EngineState(reported)
    except ValueError:
        state = EngineState.PAUSED
    if state is EngineState.STALLED:
        text = f"{engine} has work and makes no progress"
    else:
        text = f"{engine} reports that it is {reported[:_STATE_CHARACTERS]}"
    if message := document.get("message"):
        text += f": {message[:_MESSAGE_CHARACTERS]}"
    return Outage(state, _REASONS[state], text)


def unreachable(engine: str, error: str, *, known: bool) -> Outage:
    """No connection. `known`: the engine has reported before, so it has gone away."""
    if known:
        return Outage(EngineState.DOWN, Reason.ENGINE_DOWN, f"{engine} is down", error)
    text = f"waiting for {engine}"
    return Outage(EngineState.STARTING, Reason.ENGINE_STARTING, text, error)


def stale(text: str, detail: str = "") -> Outage:
    """Its state is no longer known; the text says why."""
    return Outage(EngineState.STALE, Reason.ENGINE_STALE, text, detail)


def refused(engine: str, status: int, objection: str, profile: Profile, *, tier: bool) -> Outage:
    """The state stream was answered with another status than 200. `tier`: by a sidecar."""
    if status in (401, 403):
        return Outage(
            EngineState.UNUSABLE,
            Reason.ENGINE_REFUSES_KEY,
            f"{engine} refuses this sidecar's key ({status}): "
            "set ORCH_ENGINE_API_KEY to the engine's --api-key",
        )
    if tier and status in (400, 404):
        return Outage(
            EngineState.UNUSABLE,
            Reason.ENGINE_DOWN,
            f"{engine} is a sidecar that does not report the pool ({status}): {objection}",
        )
    if status == 404:
        return Outage(
            EngineState.UNUSABLE,
            Reason.ENGINE_WITHOUT_PLUGIN,
            f"{engine} runs without the orch plugin: install orch-sidecar "
            f"in its environment, set ORCH_PROFILE={profile.name} there (and, if "
            "VLLM_PLUGINS is set, add orch to it), and restart it",
        )
    return stale(f"{engine} answered {status} to the request for its state", objection)

"""Defines the states of an engine, and the outages that keep it from taking requests.

Pure. Only a `ready` engine is sent requests; the message of an outage names cause and remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from orch_sidecar.api.refusal import Reason
from vllm_plugin.contracts.lease_protocol import incompatible
from vllm_plugin.contracts.profile import Profile

# Limits of an engine's own texts in messages.
_STATE_CHARACTERS: Final = 40
_MESSAGE_CHARACTERS: Final = 400


class PoolState(StrEnum):
    """The states of a pool: of its engine, as the sidecar sees it."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    PAUSED = "paused"  # an operator paused or reconfigures it; its API server answers
    ASLEEP = "asleep"  # an operator put it to sleep; its API server answers
    STALE = "stale"
    STALLED = "stalled"  # it answers, but its requests make no progress
    DOWN = "down"
    UNUSABLE = "unusable"  # it answers, but this sidecar cannot use it
    ABSENT = "absent"  # no address of a headless pool is known


# The fields of a document that `outage_of` reads.
OUTAGE_FIELDS: Final = frozenset({"api_version", "profile", "measurement_type", "state", "message"})


class _Meaning(NamedTuple):
    """What a state means: the reason for which it refuses; whether the engine answers requests for
    leases, for then its state stream is open; whether it will take requests again by itself: as one
    that is starting, is stopping (another will be in its place), or is alive and does not go on.
    False: somebody has to do something. None: that does not show."""

    reason: Reason | None
    answers: bool = False
    expected_back: bool | None = None


_MEANINGS: Final = {
    PoolState.STARTING: _Meaning(Reason.ENGINE_STARTING, expected_back=True),
    PoolState.READY: _Meaning(None, answers=True),
    PoolState.DRAINING: _Meaning(Reason.ENGINE_DOWN, answers=True, expected_back=True),
    PoolState.PAUSED: _Meaning(Reason.ENGINE_PAUSED, answers=True, expected_back=False),
    PoolState.ASLEEP: _Meaning(Reason.ENGINE_PAUSED, answers=True, expected_back=False),
    PoolState.STALE: _Meaning(Reason.ENGINE_STALE),
    PoolState.STALLED: _Meaning(Reason.ENGINE_STALLED, answers=True, expected_back=True),
    PoolState.DOWN: _Meaning(Reason.ENGINE_DOWN),
    PoolState.UNUSABLE: _Meaning(Reason.ENGINE_DOWN, expected_back=False),
    PoolState.ABSENT: _Meaning(Reason.ENGINE_DOWN),
}

ANSWERING_STATES: Final = frozenset(each for each, means in _MEANINGS.items() if means.answers)


@dataclass(frozen=True, slots=True)
class Outage:
    """An engine that takes no requests: its state, the reason and the message for clients.

    `detail`: for the log only. It may contain addresses, which clients must not see.
    """

    state: PoolState
    reason: Reason
    message: str
    detail: str = ""

    @property
    def expected_back(self) -> bool | None:
        """Whether the engine will take requests again by itself; None: unknown, as when it is only
        known to be unreachable."""
        return _MEANINGS[self.state].expected_back


def _outage(state: PoolState, text: str, detail: str = "") -> Outage:
    """Returns an outage for the reason that its state has."""
    reason = _MEANINGS[state].reason
    assert reason is not None, "a ready engine has no outage"
    return Outage(state, reason, text, detail)


def outage_of(document: Mapping[str, Any], profile: Profile, engine: str) -> Outage | None:
    """Returns the outage that a state document reports; None if the engine is ready.

    `engine`: its name in messages. A state that this version does not know counts as paused: the
    engine answers, and does not report that it is ready.
    """
    if (text := incompatible(document.get("api_version", ""))) is not None:
        return Outage(PoolState.UNUSABLE, Reason.API_VERSION_MISMATCH, f"{engine}: its {text}")
    theirs = (document["profile"], document["measurement_type"])
    ours = (profile.name, profile.measurement_type.value)
    if theirs != ours:
        return Outage(
            PoolState.UNUSABLE,
            Reason.PROFILE_MISMATCH,
            f"{engine} uses profile {theirs[0]!r} ({theirs[1]}), this sidecar "
            f"{ours[0]!r} ({ours[1]}): set the same ORCH_PROFILE for both",
        )
    reported = document.get("state", "ready")
    if reported == "ready":
        return None
    try:
        state = PoolState(reported)
    except ValueError:
        state = PoolState.PAUSED
    if state is PoolState.STALLED:
        text = f"{engine} has requests but makes no progress"
    else:
        text = f"{engine} reports that it is {reported[:_STATE_CHARACTERS]}"
    if message := document.get("message"):
        text += f": {message[:_MESSAGE_CHARACTERS]}"
    return _outage(state, text)


def unreachable(engine: str, error: str, *, known: bool) -> Outage:
    """Returns the outage of a failed connection. `known`: the engine has reported before."""
    if known:
        return _outage(PoolState.DOWN, f"{engine} is down", error)
    return _outage(PoolState.STARTING, f"waiting for {engine}", error)


def stale(text: str, detail: str = "") -> Outage:
    """Returns the outage of an engine whose state is no longer known, for the reason in `text`."""
    return _outage(PoolState.STALE, text, detail)


def refused(engine: str, status: int, message: str, profile: Profile, *, tier: bool) -> Outage:
    """Returns the outage of an engine that answers the request for its state stream with an error.

    `message`: of the error response. `tier`: the upstream is a sidecar.
    """
    if status == 401:
        return Outage(
            PoolState.UNUSABLE,
            Reason.ENGINE_REFUSES_KEY,
            f"{engine} rejects this sidecar's API key (401): set ORCH_ENGINE_API_KEY, or "
            "api_key or api_key_file of the pool, to the engine's --api-key",
        )
    if status in (403, 409):
        return Outage(
            PoolState.UNUSABLE,
            Reason.ENGINE_REFUSES_KEY if status == 403 else Reason.API_VERSION_MISMATCH,
            f"{engine} does not accept this sidecar ({status}): {message}",
        )
    if tier and status in (400, 404):
        return _outage(
            PoolState.UNUSABLE,
            f"{engine} is a sidecar that does not publish this pool ({status}): {message}",
        )
    if status == 404:
        return Outage(
            PoolState.UNUSABLE,
            Reason.ENGINE_WITHOUT_PLUGIN,
            f"{engine} runs without the orch plugin: install orch-sidecar "
            f"in its environment, set ORCH_PROFILE={profile.name} there (and, if "
            "VLLM_PLUGINS is set, add orch to it), and restart it",
        )
    return stale(f"{engine} answered {status} to the request for its state", message)

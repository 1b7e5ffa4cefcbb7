"""Sidecars of other releases at an engine: what is compatible is served as its release knows it."""

from __future__ import annotations

import asyncio

import pytest

from tests.patience import HANG_S
from tests.vllm_plugin.application import Engine
from tests.vllm_plugin.asgi import Call
from tests.vllm_plugin.examples import THEM, US, lease_of
from vllm_plugin.contracts.lease_protocol import API_VERSION, Claim, ClaimCall, incompatible
from vllm_plugin.state.leases import Rejected

OWN_MAJOR = API_VERSION.partition(".")[0]
OTHER_MAJOR = f"{int(OWN_MAJOR) + 1}.0.0"


def stream_of(version: str | None, instance: str = US) -> str:
    query = f"instance={instance}" + ("" if version is None else f"&api_version={version}")
    return f"/v1/capabilities/stream?{query}"


@pytest.mark.parametrize("version", ["", OWN_MAJOR, API_VERSION, f"{OWN_MAJOR}.999.0"])
def test_same_major_version_is_compatible(version: str) -> None:
    assert incompatible(version) is None


@pytest.mark.parametrize("version", ["0.9.0", OTHER_MAJOR, f"{OWN_MAJOR}0.0", "one", " "])
def test_other_major_version_is_named_beside_the_own(version: str) -> None:
    text = incompatible(version) or ""
    assert text.startswith(f"API version {version!r} is not compatible with {API_VERSION!r}")
    assert "install the same release" in text


async def test_sidecar_of_another_major_version_is_refused_with_both_versions(
    engine: Engine,
) -> None:
    call = engine.call("GET", stream_of(OTHER_MAJOR))
    assert await call.status() == 409
    error = (await call.json())["error"]
    assert (error["type"], error["code"]) == ("api_version", 409)
    assert error["message"].startswith("the sidecar's API version")
    assert repr(OTHER_MAJOR) in error["message"]
    assert repr(API_VERSION) in error["message"]
    assert engine.engine_state.claims.sidecars == 0


async def opened(engine: Engine, version: str | None, instance: str = US) -> Call:
    """A stream that has sent its first state."""
    call = engine.call("GET", stream_of(version, instance))
    assert await call.status() == 200
    event = await call.event()
    assert event is not None
    assert event[1]["api_version"] == API_VERSION
    return call


@pytest.mark.parametrize("version", [API_VERSION, f"{OWN_MAJOR}.999.0"])
async def test_sidecar_of_another_minor_version_is_offered_slots(
    engine: Engine, version: str
) -> None:
    call, state = await opened(engine, version), engine.engine_state
    full = state.enter(lease_of(THEM, 1, cost=8))
    assert isinstance(full, int)
    assert state.enter(lease_of(US, 1, cost=2)) is Rejected.NO_SLOT
    state.leave(full)
    assert (await call.event_named("offer"))["cost"] == 2


async def test_sidecar_that_names_no_version_is_sent_no_event_that_it_does_not_know(
    engine: Engine,
) -> None:
    """One of the first release takes an unknown event for a broken stream, and a 429 for its
    client's. It retries what an engine that stops has not begun."""
    call, state = await opened(engine, None), engine.engine_state
    full = state.enter(lease_of(THEM, 1, cost=8))
    assert isinstance(full, int)
    headers = {"X-Orch-Lease": lease_of(US, 1, cost=2)}
    rejected = Call(engine.app, "POST", "/v1/completions", headers)
    assert await rejected.status() == 503
    error = (await rejected.json())["error"]
    assert (error["type"], error["retriable"]) == ("engine_gone", True)
    assert "slots of this engine are taken" in error["message"]
    assert state.claims.sidecars == 0
    assert not state.claim(US, ClaimCall(Claim(2, urgent=True)))
    state.leave(full)
    names = set()
    async with asyncio.timeout(HANG_S):
        while "heartbeat" not in names:
            event = await call.event()
            assert event is not None
            names.add(event[0])
    assert names <= {"change", "heartbeat", "ended"}
    assert isinstance(state.enter(lease_of(US, 2, cost=2)), int)

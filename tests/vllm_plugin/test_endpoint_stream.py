"""The stream of an engine's state: its events, their timing, and its end. Needs no vLLM.

Sidecars of other releases: what is compatible is served as its release knows it.
"""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from tests.patience import HANG_S
from tests.vllm_plugin.application import STREAM, Engine
from tests.vllm_plugin.asgi import Call
from tests.vllm_plugin.examples import LEASE, THEM, US, lease_of, report
from vllm_plugin import endpoint
from vllm_plugin.api_server import admin_calls
from vllm_plugin.contracts import lease_protocol
from vllm_plugin.contracts.lease_protocol import API_VERSION, Claim, ClaimCall, incompatible
from vllm_plugin.state.leases import Rejected
from vllm_plugin.state.readiness import STALLED_AFTER_S


async def test_stream_begins_with_the_whole_state_and_the_instances_leases(engine: Engine) -> None:
    engine.engine_state.enter(LEASE)
    _, first = await engine.stream()
    assert first["slots_total"] == 8
    assert first["epoch"] == "e1"
    assert first["leases"] == [LEASE]


async def test_changes_are_coalesced_to_one_in_20_ms(engine: Engine) -> None:
    call, _ = await engine.stream()
    loop = asyncio.get_running_loop()
    began = loop.time()
    for running in range(200):
        engine.engine_state.record(report(1 + running % 7))
        await asyncio.sleep(0.001)
    took_s = loop.time() - began
    engine.engine_state.record(report(8, 1))
    seen = 0
    while (await call.event_named("change")).get("waiting") != 1:
        seen += 1
    assert 1 <= seen <= took_s / 0.020 + 1


async def test_end_of_a_lease_is_sent_at_once_and_before_the_counts(engine: Engine) -> None:
    key = engine.engine_state.enter(LEASE)
    assert isinstance(key, int)
    call, _ = await engine.stream()
    engine.engine_state.record(report(1))
    engine.engine_state.leave(key)
    assert await call.event() == ("ended", {"leases": [LEASE]})


async def test_lease_that_ends_while_the_first_state_is_sent_is_reported(engine: Engine) -> None:
    key = engine.engine_state.enter(LEASE)
    assert isinstance(key, int)
    call = engine.call("GET", STREAM)
    await call.status()
    engine.engine_state.leave(key)
    name, data = await call.event() or ("", {})
    if LEASE in data["leases"]:
        assert (await call.event_named("ended"))["leases"] == [LEASE]
    assert name == "state"


async def test_heartbeat_is_sent_while_nothing_changes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "HEARTBEAT_EVERY_S", 0.05)
    call, _ = await engine.stream()
    first = await call.event()
    assert first is not None
    assert (first[0], set(first[1])) == ("heartbeat", {"observed_at", "claim", "claimed", "waits"})
    engine.engine_state.record(report(0, batch=2))  # a step, after which nothing runs
    while "steps_by_batch" not in (beat := await call.event_named("heartbeat")):
        pass
    assert beat["steps_by_batch"] == {"2": [1, 0.01]}
    assert beat["steps_total"] == 1
    assert "prefill" not in beat, "only changed fields"
    assert set(await call.event_named("heartbeat")) == {"observed_at", "claim", "claimed", "waits"}


async def test_heartbeat_repeats_what_its_reader_claims(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that is set and ends between two events is no change, and must not be waited for."""
    monkeypatch.setattr(endpoint, "HEARTBEAT_EVERY_S", 0.05)
    engine.engine_state.enter(lease_of(THEM, cost=8))
    call, _ = await engine.stream()
    engine.engine_state.claim(US, ClaimCall(Claim(2, urgent=True, more=1), number=3))
    while (beat := await call.event_named("heartbeat"))["claim"] is None:
        pass
    for _ in range(2):
        assert beat["claim"] == {"cost": 2, "urgent": True, "more": 1}
        assert beat["claimed"] == 3
        beat = await call.event_named("heartbeat")


async def test_stall_and_its_end_are_each_sent_with_one_heartbeat(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "HEARTBEAT_EVERY_S", 0.05)
    call, first = await engine.stream()
    assert first["state"] == "ready"
    engine.engine_state.record(report(3, at_s=time.time() - STALLED_AFTER_S - 1))
    assert (await call.event_named("heartbeat"))["state"] == "stalled"
    assert set(await call.event_named("heartbeat")) == {"observed_at", "claim", "claimed", "waits"}
    other = engine.call("GET", "/v1/capabilities")
    await other.status()
    assert (await other.json())["engines"][0]["state"] == "stalled"
    late, opening = await engine.stream(STREAM.replace(US, THEM))
    assert opening["state"] == "stalled"
    engine.engine_state.record(report(3, at_s=time.time()))
    for stream in (call, late):
        assert (await stream.event_named("heartbeat"))["state"] == "ready"


async def test_pause_and_its_end_are_sent_at_once() -> None:
    """Not with the next heartbeat: no request must be dispatched to a suspended engine."""
    engine, paused = Engine(), asyncio.Event()

    async def pause() -> None:
        engine.client.sleeping = True
        await paused.wait()

    async def resume() -> None:
        engine.client.sleeping = False

    engine.app.add_api_route("/pause", pause, methods=["POST"])
    engine.app.add_api_route("/resume", resume, methods=["POST"])
    await engine.start()
    call, first = await engine.stream()
    assert (first["state"], first["message"]) == ("ready", None)
    pausing = engine.call("POST", "/pause")
    beat = await call.event_named("heartbeat")
    while "state" not in beat:
        beat = await call.event_named("heartbeat")
    assert (beat["state"], "POST /resume" in beat["message"]) == ("paused", True)
    paused.set()
    await pausing.task
    assert engine.engine_state.heartbeat_fields()["state"] == "paused"
    await engine.call("POST", "/resume").task
    while (beat := await call.event_named("heartbeat")).get("state") != "ready":
        pass
    assert beat["message"] is None
    await engine.stop()


async def test_pause_not_requested_over_http_is_sent_within_two_seconds(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "HEARTBEAT_EVERY_S", 0.05)
    monkeypatch.setattr(admin_calls, "ASK_EVERY_S", 0.05)
    call, _ = await engine.stream()
    engine.engine_state.record(report(3, at_s=time.time() - STALLED_AFTER_S - 1))
    engine.client.sleeping = True
    while (beat := await call.event_named("heartbeat")).get("state") != "paused":
        pass
    assert "POST /resume" in beat["message"]
    engine.client.sleeping = False
    states = []
    while "ready" not in states:
        states.append((await call.event_named("heartbeat")).get("state"))
    assert "stalled" not in states, "a suspended engine owes no step"


async def test_stream_ends_when_the_engine_stops(engine: Engine) -> None:
    call, _ = await engine.stream()
    engine.client.is_running = False
    assert await call.event() is None
    await asyncio.wait_for(call.task, HANG_S)
    assert engine.engine_state._subscribers == set()


async def test_stream_ends_when_the_server_shuts_down(engine: Engine) -> None:
    """An open response would block uvicorn's shutdown for ever."""
    engine.app.state.server = SimpleNamespace(should_exit=False)
    call, _ = await engine.stream()
    engine.app.state.server.should_exit = True
    assert await call.event() is None


async def test_stream_whose_reader_disconnects_unsubscribes(engine: Engine) -> None:
    call, _ = await engine.stream()
    assert len(engine.engine_state._subscribers) == 1
    call.disconnect()
    await asyncio.wait_for(call.task, HANG_S)
    assert engine.engine_state._subscribers == set()


async def test_reader_that_asks_for_fewer_changes_gets_fewer(engine: Engine) -> None:
    call = engine.call("GET", f"{STREAM}&changes_every_ms=300")
    await call.status()
    await call.event_named("state")
    loop = asyncio.get_running_loop()
    began = loop.time()
    for running in (1, 2, 3):
        engine.engine_state.record(report(running))
        assert (await call.event_named("change"))["running"] == running
    assert loop.time() - began > 2 * 0.300


async def test_interval_that_is_none_is_refused_with_the_rule(engine: Engine) -> None:
    call = engine.call("GET", f"{STREAM}&changes_every_ms=often")
    assert await call.status() == 400
    assert "must be an integer from 0 to 1000" in (await call.json())["error"]["message"]


async def test_end_and_offer_do_not_wait_for_the_interval_that_a_reader_asks_for(
    engine: Engine,
) -> None:
    key = engine.engine_state.enter(lease_of(US, cost=8))
    assert isinstance(key, int)
    call = engine.call("GET", f"{STREAM}&changes_every_ms=1000")
    await call.status()
    await call.event_named("state")
    ticks = 0

    async def tick() -> None:
        """Counts hundredths of a second; one in which the machine stands still counts once."""
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    engine.engine_state.record(report(1))  # a change, which waits for its turn
    engine.engine_state.claim(US, ClaimCall(Claim(2, urgent=True)))
    engine.engine_state.leave(key)
    assert await call.event() == ("ended", {"leases": [lease_of(US, cost=8)]})
    change = await call.event_named("change")
    assert change["leased"] == 0, "an offer is preceded by the slots"
    assert (await call.event_named("offer"))["cost"] == 2
    ticking.cancel()
    assert ticks < 80


async def test_many_readers_together_get_no_more_changes_than_two(engine: Engine) -> None:
    loop = asyncio.get_running_loop()
    opened, calls = loop.time(), []
    for number in range(40):
        call = engine.call("GET", STREAM.replace(US, f"{number:016x}"))
        await call.status()
        await call.event_named("state")
        calls.append(call)
    began, running, seen = loop.time(), 0, 0
    while loop.time() - began < 0.4:
        running = running % 7 + 1
        engine.engine_state.record(report(running))
        await asyncio.sleep(0.001)
    took_s = loop.time() - opened  # they read nothing meanwhile
    engine.engine_state.record(report(8, 1))
    for call in calls:
        while (await call.event_named("change")).get("waiting") != 1:
            seen += 1
    interval_s = lease_protocol.changes_every_s(40)
    assert seen <= 40 * (took_s / interval_s + 2)


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

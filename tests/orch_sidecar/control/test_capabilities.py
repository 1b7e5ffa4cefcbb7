"""The sidecar's `/v1/capabilities` document."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast
from unittest.mock import create_autospec

import aiohttp
import pytest
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.gate import Gate
from orch_sidecar.admission.types import AdmissionRequest, EngineReport
from orch_sidecar.auth.authorizer import Authorizer
from orch_sidecar.auth.keys import ApiKey, Keys
from orch_sidecar.config.configuration import Configuration, ReloadState, load_pools
from orch_sidecar.config.pool_settings import PoolSettings
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.control import pages as module
from orch_sidecar.control.capabilities import entry as entry_of
from orch_sidecar.control.capabilities import head
from orch_sidecar.control.pages import Pages
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.observability.metrics import Metrics
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import PoolRegistry
from orch_sidecar.pools.status import PoolStatus, absent
from vllm_plugin.contracts import profile
from vllm_plugin.contracts.lease_protocol import API_VERSION
from vllm_plugin.contracts.profile import Profile, ServiceClass

CLOUD = profile.load("cloud")
ENGINE: dict[str, Any] = {
    "engine": "vllm",
    "engine_version": "0.32.0",
    "pool": "cloud",
    "models": ["tiny"],
    "ctx_max": 2048,
    "profile": "cloud",
    "measurement_type": "batched_online",
    "batching": True,
    "slots_total": 8,
    "slots_free": 6,
    "running": 2,
    "waiting": 0,
    "peak": 7,
    "foreign": 99,
    "leased": 99,
    "kv_tokens_total": 4096,
    "kv_cache_usage": 0.1,
    "preemptions_total": 0,
    "steps_by_batch": {"1": [5, 0.1]},
    "state": "ready",
    "epoch": "e1",
    "leases": ["secret.lease.1"],
    "observed_at": "2025-11-21T03:00:00.000Z",
    "supported_workloads": ["completion"],
    "rate_limits": {},
    "features": {},
}


def admission_of(*, slots: int = 8, foreign: int = 1, leased: int = 3) -> AdmissionController:
    core = AdmissionController(profile.load("cloud").admission)
    core.engine_reports(EngineReport("e1", slots, foreign), 0.0)
    if leased:
        core.arrive("a", AdmissionRequest(ServiceClass.INTERACTIVE, leased), 0.0)
    return core


def pool_of(
    engine: dict[str, Any] | None,
    admission: AdmissionController,
    state: PoolState = PoolState.READY,
    used: Profile = CLOUD,
) -> PoolStatus:
    """A pool whose engine sent that document, 4 ms ago."""
    settings = PoolSettings(name="mine", url="http://127.0.0.1:8000", profile=used.name)
    session = cast(aiohttp.ClientSession, None)  # nothing is sent
    pool = Pool(settings, used, used.admission, session, 1.0, keeps_queue=True)
    pool.admission, pool.gate = admission, Gate(admission)
    pool.watcher.document, pool.watcher.state, pool.watcher.busy_ratio = engine, state, 0.5
    if engine is not None:
        pool.watcher.heard_at = pool.connections.loop.time() - 0.0045
    return pool.status()


async def the_entry(
    engine: dict[str, Any] | None,
    admission: AdmissionController,
    state: PoolState = PoolState.READY,
    key: ApiKey | None = None,
) -> dict[str, Any]:
    return entry_of(pool_of(engine, admission, state), key)


def test_head_has_what_concerns_all_pools() -> None:
    states = {"mine": "starting"}
    assert head(
        state="starting", states=states, sidecar_version="0.1.0", sidecar_build="pure", generation=1
    ) == {
        "api_version": API_VERSION,
        "sidecar_version": "0.1.0",
        "sidecar_build": "pure",
        "state": "starting",
        "generation": 1,
        "pools": states,
    }


async def test_pool_whose_engine_has_never_reported_is_there_with_what_is_configured() -> None:
    entry = await the_entry(None, AdmissionController(CLOUD.admission), PoolState.STARTING)
    expected = {
        "pool": "mine", "profile": "cloud", "measurement_type": "batched_online",
        "batching": True, "state": "starting", "slots_total": 0, "slots_free": 0, "leased": 0,
        "foreign": 0, "engine": None, "models": [], "ctx_max": None, "supported_workloads": [],
        "features": {}, "age_ms": None, "queue": {"interactive": 0, "bulk": 0, "idle": 0},
    }  # fmt: skip
    assert {name: entry[name] for name in expected} == expected
    assert set(entry) <= set(await the_entry(ENGINE, admission_of()))


def test_headless_pool_without_an_address_is_there_too() -> None:
    entry = entry_of(absent("entry", profile.load("home")), None)
    assert (entry["pool"], entry["profile"], entry["state"]) == ("entry", "home", "absent")
    assert (entry["batching"], entry["slots_total"]) == (False, 0)


async def test_workloads_are_those_that_engine_and_sidecar_both_serve() -> None:
    engine = ENGINE | {"supported_workloads": ["completion", "chat", "realtime"]}
    entry = await the_entry(engine, admission_of())
    assert entry["supported_workloads"] == ["completion", "chat"]


async def test_rate_limits_are_what_is_enforced() -> None:
    key = ApiKey("alice", b"", concurrency=3)
    for asks, concurrency in ((None, None), (ApiKey("bob", b""), None), (key, 3)):
        entry = await the_entry(ENGINE, admission_of(), key=asks)
        rules = CLOUD.admission
        assert rules.interactive is not None
        assert entry["rate_limits"] == {
            "queue_capacity": {
                "interactive": rules.interactive.queue_capacity,
                "bulk": rules.bulk.queue_capacity,
                "idle": rules.bulk.queue_capacity,
            },
            "max_wait_s": {
                "interactive": rules.interactive.max_wait_s,
                "bulk": rules.bulk.max_wait_s,
                "idle": 86_400,
            },
            "key_concurrency": concurrency,
        }


async def test_leases_are_counted_by_the_ledger_and_not_by_the_engine() -> None:
    core = admission_of()
    entry = await the_entry(ENGINE, core)
    assert entry["slots_free_by_class"] == {"interactive": 4, "bulk": 4, "idle": 1}
    core.arrive("waits", AdmissionRequest(ServiceClass.INTERACTIVE, 8), 1.0)
    entry = await the_entry(ENGINE, core)
    assert entry["pool"] == "mine"
    assert entry["leased"] == 3
    assert entry["foreign"] == 1
    assert entry["slots_free"] == 0, "one is ahead"
    assert (entry["effective_capacity"], entry["demand_ratio"]) == (8, 1.375)
    assert entry["queue"] == {"interactive": 1, "bulk": 0, "idle": 0}
    assert entry["hold"] == "slot"
    assert entry["oversubscription_violations_total"] == 0
    assert (entry["state"], entry["age_ms"], entry["engine_busy_ratio"]) == ("ready", 4, 0.5)


async def test_only_classes_of_the_profile_are_listed() -> None:
    core = AdmissionController(profile.load("offline").admission)
    core.engine_reports(EngineReport("e1", 8, 0), 0.0)
    offline = profile.load("offline")
    seen = pool_of(ENGINE, core, used=offline)
    entry = entry_of(seen, None)
    assert entry["queue"] == {"bulk": 0, "idle": 0}
    assert set(entry["limits"]) == {"bulk", "idle", "mixed_batch", "measured", "tpot_out_of_reach"}
    assert set(entry["rate_limits"]["queue_capacity"]) == {"bulk", "idle"}


async def test_batching_is_counted_by_the_engines_decode_steps() -> None:
    engine = ENGINE | {"steps_by_batch": {"1": [2, 0.01], "4": [6, 0.05]}}
    entry = await the_entry(engine, admission_of())
    assert entry["batching_stats"] == {
        "total_batches": 8,
        "total_requests": 1,
        "avg_batch_size": 3.25,
        "avg_batch_duration_ms": 7.5,
        "queue_depth": 0,
        "max_batch_size": 8,
        "max_wait_ms": 0.0,
    }


async def test_other_fields_are_those_of_the_engine() -> None:
    entry = await the_entry(ENGINE, admission_of())
    replaced = {"slots_free", "leased", "foreign", "state", "pool", "rate_limits"}
    for key in set(ENGINE) - replaced - {"leases"}:
        assert entry[key] == ENGINE[key]


POOLS = 30


async def pages_of(keys: Keys | None, *, pools: int) -> tuple[Pages, PoolRegistry]:
    """The pages of pools whose engines have never reported, the last of them a headless one."""
    entries: list[dict[str, Any]] = [
        {"name": f"e-{number}", "url": f"http://127.0.0.1:{1 + number}", "profile": "cloud"}
        for number in range(pools)
    ]
    entries.append({"name": "late", "url": "http://late:80", "profile": "home", "headless": True})
    settings = SidecarSettings.model_validate({"pools": entries})
    configured = load_pools(settings)
    registry = PoolRegistry(configured, settings, cast(aiohttp.ClientSession, None))
    reloads = ReloadState(Configuration(settings, {}, {}))
    return Pages(registry, Metrics(registry), reloads, Authorizer(keys)), registry


async def pieces_of(pages: Pages, key: ApiKey | None = None) -> list[bytes]:
    """What a client is sent."""
    body, writer = pages.capabilities(key).body, create_autospec(AbstractStreamWriter)
    assert isinstance(body, Payload)
    await body.write(writer)
    return [call.args[0] for call in writer.write.await_args_list]


async def test_every_pool_has_its_entry_in_the_order_of_the_settings() -> None:
    alice = ApiKey("alice", b"a", concurrency=3)
    for pools in (0, 1, POOLS):
        pages, registry = await pages_of(Keys([alice]), pools=pools)
        document = json.loads(b"".join(await pieces_of(pages, alice)))
        assert document["pools"] == registry.states()
        entries = document["engines"]
        assert [each["pool"] for each in entries] == [*(pool.name for pool in registry), "late"]
        assert entries[-1]["state"] == "absent"
        assert [each["state"] for each in entries] == list(document["pools"].values())
        for each in entries:
            assert "key_requests_per_minute" in each["rate_limits"]
        assert all("shares" in each for each in entries[:-1])


async def test_event_loop_runs_between_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pieces as short as they can be: one entry."""
    pages, _ = await pages_of(None, pools=POOLS)
    monkeypatch.setattr(module, "PIECE_S", -1.0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    pieces = await pieces_of(pages)
    counting.cancel()
    assert len(pieces) == POOLS + 2, "an entry each, and the end"
    assert turns >= POOLS
    assert len(json.loads(b"".join(pieces))["engines"]) == POOLS + 1

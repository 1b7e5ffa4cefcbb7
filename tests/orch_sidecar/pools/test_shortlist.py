"""Placement among many pools: which are compared, and that nothing that counts is overlooked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import aiohttp
import pytest

from orch_sidecar.admission.availability import OrderedBy
from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.types import EngineReport, StepTime
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.options import RequestOptions
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.config.configuration import load_pools
from orch_sidecar.config.settings import SidecarSettings
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.pools.candidates import MAX_POOLS_COMPARED, WAITING_POOLS_DRAWN
from orch_sidecar.pools.parent_leases import ParentLeases
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.registry import Placement, PoolRegistry
from orch_sidecar.pools.routing import PlacementReason as By
from orch_sidecar.pools.routing import PrefixUse
from tests.orch_sidecar.admission.gates import opened

STEP_TIME = StepTime(8.0, 0.5, 1.0, 8)


def registry_of(*entries: dict[str, Any]) -> PoolRegistry:
    settings = SidecarSettings.model_validate({"pools": list(entries)})
    session = cast(aiohttp.ClientSession, None)  # nothing is sent
    return PoolRegistry(load_pools(settings), settings, session)


def entry(name: str, profile: str = "cloud", **more: Any) -> dict[str, Any]:
    return {"name": name, "url": "http://127.0.0.1:8000", "profile": profile} | more


def reports(pool: Pool, foreign: int = 0, slots: int = 8, ctx_max: int = 2048) -> None:
    """Its engine is ready, with the model `m`."""
    pool.watcher.state, pool.watcher.message = PoolState.READY, ""
    pool.watcher.models, pool.watcher.ctx_max = {"m": None}.keys(), ctx_max
    pool.gate.engine_reports(
        EngineReport("e1", slots, foreign, step_time=STEP_TIME, prefill_tokens_per_s=1e4)
    )


@pytest.fixture
async def registry() -> PoolRegistry:
    """20 idle engines."""
    made = registry_of(*(entry(f"e-{number:02}") for number in range(20)))
    for pool in made:
        reports(pool)
    return made


def call(prefixes: tuple[int, ...] = (), **options: Any) -> GenerationRequest:
    return GenerationRequest(
        1, True, "m", 50, 100, options=RequestOptions(**options), body_bytes=500, prefixes=prefixes
    )


def placed(registry: PoolRegistry, asked: GenerationRequest | None = None) -> Placement:
    found = registry.choose(asked or call(), 0.0)
    assert isinstance(found, Placement), found
    return found


def take(registry: PoolRegistry, asked: GenerationRequest | None = None) -> str:
    """Places a request, which gets a slot; returns the pool."""
    found = placed(registry, asked)
    assert opened(found.pool.gate, found.request).queued is None
    return found.pool.name


async def test_some_of_many_pools_predict_where_requests_have_to_wait_and_all_of_a_few(
    registry: PoolRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    forecast: Callable[..., Any] = AdmissionController.forecast

    def counting(controller: AdmissionController, request: Any, now: float) -> Any:
        asked.append(controller)
        return forecast(controller, request, now)

    monkeypatch.setattr(AdmissionController, "forecast", counting)
    for _ in range(50):
        take(registry)
    assert not asked, "it starts at once at each of those that are drawn"
    for _ in range(20 * 8 - 50):
        take(registry)
    asked.clear()
    placed(registry)
    assert len(asked) == WAITING_POOLS_DRAWN
    few = registry_of(*(entry(f"e-{number}") for number in range(MAX_POOLS_COMPARED)))
    for pool in few:
        reports(pool)
    asked.clear()
    placed(few)
    assert len(asked) == MAX_POOLS_COMPARED


async def test_pool_that_changes_is_looked_at_again(registry: PoolRegistry) -> None:
    full, drained, gone, *others = registry.all
    reports(full, foreign=8)
    drained.gate.drain(OrderedBy.OPERATOR)
    gone.gate.engine_unavailable(Refusal(Reason.ENGINE_DOWN, "gone"))
    names = {take(registry) for _ in range(8 * len(others))}
    assert names == {pool.name for pool in others}
    reports(full)
    drained.gate.resume()
    reports(gone)
    assert {take(registry) for _ in range(24)} == {full.name, drained.name, gone.name}


async def test_pinned_pool_is_chosen_whatever_the_others_do(registry: PoolRegistry) -> None:
    busy = registry["e-07"]
    reports(busy, foreign=8)
    found = placed(registry, call(pool="e-07"))
    assert (found.pool, found.reason) == (busy, By.PINNED)
    assert placed(registry, call(pool="e-07", prefers=True)).reason is By.PREFERRED
    busy.gate.engine_unavailable(Refusal(Reason.ENGINE_DOWN, "gone"))
    refused = registry.choose(call(pool="e-07"), 0.0)
    assert isinstance(refused, Refusal)
    assert refused.message == "gone"
    assert placed(registry, call(pool="e-07", prefers=True)).pool is not busy


async def test_conversation_stays_where_its_prefix_is_until_that_pool_has_too_much(
    registry: PoolRegistry,
) -> None:
    assert not placed(registry).pool.by_prefix
    first = placed(registry, call(prefixes=(1, 2))).pool.name
    again = placed(registry, call(prefixes=(1, 2)))
    assert (again.pool.name, again.reason) == (first, By.PREFIX)
    reports(registry[first], foreign=7)
    moved = placed(registry, call(prefixes=(1, 2)))
    assert moved.pool.name != first
    assert moved.pool.by_prefix[PrefixUse.MOVED] == 1


async def test_adapter_is_at_home_where_it_is_loaded_of_many_else_where_there_is_room(
    registry: PoolRegistry,
) -> None:
    pools = [registry["e-03"], registry["e-11"], registry["e-07"]]
    for pool, resident in zip(pools, ({"sql"}, set(), {"another"}), strict=True):
        pool.watcher.models = {"m": None, "sql": None}.keys()
        pool.watcher.adapters, pool.watcher.resident = frozenset({"sql"}), frozenset(resident)
        pool.watcher._most_adapters = 1
        pool.gate.notify()
    asked = replace(call(), model="sql")
    for pool in pools[:2]:
        found = placed(registry, asked)
        assert (found.pool, found.reason) == (pool, By.ADAPTER)
        pool.gate.engine_unavailable(Refusal(Reason.ENGINE_DOWN, "gone"))
    assert placed(registry, asked).reason is By.ONLY


async def test_request_that_none_can_take_is_refused_with_the_reason(
    registry: PoolRegistry,
) -> None:
    asked = GenerationRequest(1, False, "nobody's", 5, 5, body_bytes=10)
    refused = registry.choose(asked, 0.0)
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.NOT_FOUND
    loads = registry["e-07"]
    loads.watcher.models = {"m": None, "nobody's": None}.keys()
    loads.gate.notify()
    assert placed(registry, asked).pool is loads
    large = GenerationRequest(9, False, "m", 5, 5, body_bytes=10)
    refused = registry.choose(large, 0.0)
    assert isinstance(refused, Refusal)
    assert "e-00 has 8 slots" in refused.message
    for pool in registry:
        pool.gate.engine_unavailable(Refusal(Reason.ENGINE_DOWN, "gone"))
    refused = registry.choose(call(), 0.0)
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.NO_POOL


async def test_pool_without_interactive_requests_takes_them_as_bulk() -> None:
    asked = replace(call(max_wait_ms=100.0), key=b"alice")
    for profile, name in (("cloud", "interactive"), ("offline", "bulk")):
        [pool] = registry_of(entry("a", profile))
        request = pool.admission_request(asked, 30.0)
        found = (request.service_class, request.key, request.max_wait_ms)
        assert found == (name, b"alice", 70.0)


async def test_longest_context_is_known_when_all_engines_have_reported(
    registry: PoolRegistry,
) -> None:
    assert registry.together.ctx_max == 2048
    reports(registry["e-03"], ctx_max=8192)
    assert registry.together.ctx_max == 8192
    assert registry_of(*(entry(f"e-{number}") for number in range(9))).together.ctx_max is None


async def test_address_that_is_gone_takes_nothing_and_its_successor_does() -> None:
    made = registry_of(entry("cloud", headless=True))
    pools = [made.add_address("cloud", number, f"10.0.0.{number}") for number in range(1, 9)]
    for pool in pools:
        reports(pool)
    gone = pools[0]
    ticket = opened(gone.gate, placed(made).request)
    assert ticket.queued is None
    made.remove_address(gone, "gone")
    assert not made.without_address
    assert placed(made, call(pool="cloud")).pool in pools[1:], "its group can be selected"
    assert {take(made) for _ in range(56)} == {pool.name for pool in pools[1:]}
    successor = made.add_address("cloud", 1, "10.0.0.99")
    reports(successor)
    ticket.end()  # the last request of the one before, of the same name
    assert placed(made).pool is successor
    for pool in made.all:
        made.remove_address(pool, "gone")
    assert made.without_address == {"cloud": Refusal(Reason.ENGINE_DOWN, "gone")}


async def test_changes_reach_parents_and_placement(registry: PoolRegistry) -> None:
    class Counting(ParentLeases):
        changes = 0
        at_once = 0

        def changed(self, *, at_once: bool = False) -> None:
            self.changes += 1
            self.at_once += at_once

    leases = Counting("r" * 16)
    registry.report_changes(leases)
    registry["e-01"].gate.drain(OrderedBy.OPERATOR)
    registry["e-01"].gate.resume()
    assert leases.at_once == 2
    reports(registry["e-00"], foreign=8)
    assert leases.changes > leases.at_once == 2
    assert "e-00" not in {take(registry) for _ in range(19 * 8)}
    registry.report_changes(None)
    before = leases.changes
    reports(registry["e-00"])
    assert leases.changes == before
    assert placed(registry).pool is registry["e-00"]


async def test_fewer_changes_are_asked_of_each_engine_the_more_there_are() -> None:
    for count, least_s in ((1, 0.001), (100, 0.1)):
        made = registry_of(*(entry(f"e-{number}") for number in range(count)))
        assert made.all[0].watcher._changes_every_s() == least_s

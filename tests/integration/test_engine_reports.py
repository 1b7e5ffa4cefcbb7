"""What the engine says of itself: what is made of it, what is passed over, what is nonsense."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine


async def test_optional_field_that_is_nonsense_breaks_nothing(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    """What is not understood counts as not said."""
    names = (
        "step_time", "prefill_tokens_per_s", "kv_cache_usage", "kv_tokens_total", "ctx_max",
        "preemptions_total", "prefilling", "busy_seconds_total", "steps_by_batch", "steps_total",
        "prefill",
    )  # fmt: skip
    follower = sidecar.pool.follower
    nonsense: Any
    for nonsense in ("x", [], {}, None, -1, {"t0_ms": "a", "quality": "good"}):
        engine.tell(**dict.fromkeys(names, nonsense))
        await eventually(lambda n=nonsense: follower.document["prefill"] == n)  # type: ignore[index,misc]
        assert sidecar.sidecar.state == "ready"
        assert (await (await sidecar.client()).post()).status == 200
        assert (await sidecar.metrics())['orch_slots_total{pool="cloud"}'] == 4
        assert (await sidecar.capabilities())["batching_stats"]["total_batches"] == 0


async def test_what_does_not_matter_to_admission_is_not_brought_before_it(
    engine: ScriptedEngine, sidecar: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(sidecar.pool.gate, "engine_reports", told.append)
    for number in range(3):
        engine.tell(requests_total=number, steps_total=number, prefill={"tokens": number})
        await eventually(lambda n=number: sidecar.pool.follower.document["steps_total"] == n)  # type: ignore[index,misc]
    assert told == []
    engine.tell(prefill_tokens_per_s=100.0)
    await eventually(lambda: told)
    assert len(told) == 1


async def test_busy_engine_is_seen_by_its_heartbeats(
    engine: ScriptedEngine, sidecar: Running
) -> None:
    assert sidecar.pool.follower.busy_ratio is None
    engine.tell(busy_seconds_total=10.0)
    await eventually(lambda: sidecar.pool.follower._busy is not None)
    await asyncio.sleep(0.2)
    engine.tell(busy_seconds_total=10.1)
    await eventually(lambda: sidecar.pool.follower.busy_ratio)
    ratio = (await sidecar.capabilities())["engine_busy_ratio"]
    assert 0.2 < ratio < 0.55
    metrics = await sidecar.metrics()
    assert metrics['orch_engine_busy_ratio{pool="cloud"}'] == ratio
    assert metrics['orch_engine_busy_seconds_total{pool="cloud"}'] == 10.1

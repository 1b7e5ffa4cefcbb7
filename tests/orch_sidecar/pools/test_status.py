"""Snapshots of real pools."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import aiohttp
import pytest

from orch_sidecar.admission.availability import OrderedBy
from orch_sidecar.admission.types import AdmissionRequest, EngineReport, StepTime
from orch_sidecar.api.refusal import Reason
from orch_sidecar.config.pool_settings import PoolSettings
from orch_sidecar.engine_state.states import PoolState
from orch_sidecar.pools.pool import Pool
from orch_sidecar.pools.status import BatchingStats
from tests.orch_sidecar.admission.gates import opened
from tests.orch_sidecar.snapshots import CLOUD
from vllm_plugin.contracts.profile import IDLE, ServiceClass

REQUEST = AdmissionRequest(ServiceClass.INTERACTIVE, 1, 100, 64)


@pytest.fixture
async def pool() -> Pool:
    """A pool of 4 slots whose engine is ready."""
    settings = PoolSettings(name="cloud", url="http://127.0.0.1:8000", profile="cloud")
    session = cast(aiohttp.ClientSession, None)  # nothing is sent
    made = Pool(settings, CLOUD, CLOUD.admission, session, 1.0, keeps_queue=True)
    step_time = StepTime(5.0, 0.5, 1.0, 4)
    report = EngineReport("e1", 4, foreign=1, step_time=step_time, prefill_tokens_per_s=1000.0)
    made.gate.engine_reports(report)
    made.watcher.state, made.watcher.message = PoolState.READY, ""
    return made


async def test_snapshot_counts_leases_and_queued_requests_and_keeps_its_values(pool: Pool) -> None:
    first = opened(pool.gate, AdmissionRequest(ServiceClass.BULK, 3))
    assert first.queued is None
    assert opened(pool.gate, REQUEST).queued is not None
    assert opened(pool.gate, AdmissionRequest(ServiceClass.BULK)).queued is not None
    before, status = pool.snapshot(), pool.status()
    first.end()
    assert (before.slots_total, before.room, before.queue_depth) == (4, 0, 2)
    assert status.queued == {"interactive": 1, "bulk": 1, "idle": 0}
    decoded = replace(status, document={"steps_by_batch": {"2": [3, 0.3]}})
    assert decoded.batching == BatchingStats(3, 1, 2.0, 100.0, 2, max_batch_size=4)
    assert pool.snapshot().queue_depth < 2


async def test_idle_requests_take_no_room_from_others(pool: Pool) -> None:
    pool.gate.ledger.grant("row", AdmissionRequest(IDLE, 2), 0.0)
    compared = pool.standing()
    assert compared is not None
    assert (compared.load, pool.snapshot().room) == (1, 3)


async def test_end_of_a_request_is_predicted_while_the_pool_takes_requests(pool: Pool) -> None:
    assert pool.snapshot().end_ms is None
    assert (pool.snapshot(REQUEST).end_ms or 0) > 100
    pool.gate.drain(OrderedBy.OPERATOR)
    assert pool.snapshot(REQUEST).end_ms is None


async def test_drain_of_the_pool_hides_the_state_of_its_engine(pool: Pool) -> None:
    ready = pool.status()
    assert (ready.state, ready.slots_free["slots_free"]) == (PoolState.READY, 3)
    pool.gate.drain(OrderedBy.OPERATOR)
    compared, drained = pool.snapshot(), pool.status()
    assert drained.state is pool.state is PoolState.DRAINING
    assert drained.answers
    assert compared.unavailable == pool.unavailable
    assert compared.unavailable is not None
    assert compared.unavailable.reason is Reason.DRAINING
    assert drained.message == compared.unavailable.message
    assert (compared.room, drained.slots_free["slots_free"]) == (3, 0)


async def test_age_is_that_of_the_last_valid_event(pool: Pool) -> None:
    assert pool.status().age_ms is None
    pool.watcher.heard_at = pool.connections.loop.time() - 0.5
    assert 500 <= (pool.status().age_ms or 0) < 60_000

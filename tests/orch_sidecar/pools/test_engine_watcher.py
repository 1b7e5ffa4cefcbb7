"""How often a watcher asks its upstream for changes, and what an event costs it.

Silent streams time out, whatever the reader awaits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from orch_sidecar.admission.controller import AdmissionController
from orch_sidecar.admission.gate import Gate
from orch_sidecar.control import capabilities
from orch_sidecar.engine_state import report
from orch_sidecar.pools import engine_watcher
from orch_sidecar.pools.engine_calls import ClaimSender
from orch_sidecar.pools.engine_watcher import EngineWatcher
from orch_sidecar.pools.stream_timeout import StreamTimeout
from tests.integration.running import eventually
from tests.orch_sidecar.parents import CLOUD, grant
from tests.orch_sidecar.published import Tier
from vllm_plugin.contracts.lease_protocol import CHANGES_EVERY_MS


class Upstream(Tier):
    """A published pool that notes how often its readers want its changes."""

    def __init__(self) -> None:
        super().__init__("cloud")
        self.asked: list[str | None] = []

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        if http.method == "GET":
            self.asked.append(http.query.get(CHANGES_EVERY_MS))
        return await super().handle(http)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    made = Upstream()
    server = await made.start()
    yield made
    made.publisher.streams.close()
    made.listener.close()
    await server.shutdown(1.0)


class Watching:
    """A watcher, and how long it wants to have between two changes."""

    def __init__(self, session: aiohttp.ClientSession, upstream: Upstream, every_s: float) -> None:
        self.every_s = every_s
        self.gate = Gate(AdmissionController(CLOUD.admission))
        self.watcher = EngineWatcher(
            session, upstream.url, {}, self.gate, CLOUD, changes_every_s=lambda: self.every_s
        )
        self.task = asyncio.get_running_loop().create_task(self.watcher.watch())

    async def hears(self) -> None:
        """Returns after the next event."""
        last = self.watcher.heard_at
        await eventually(lambda: self.watcher.heard_at != last)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_few_streams_are_read_as_often_as_they_change(upstream: Upstream) -> None:
    async with aiohttp.ClientSession() as session:
        watching = Watching(session, upstream, 0.01)
        await eventually(lambda: watching.watcher.ready)
        assert upstream.asked == [None]
        await watching.stop()


async def test_peak_of_before_the_stream_is_no_violation(upstream: Upstream) -> None:
    [pool] = upstream
    pool.changes = {"document": {**pool.status().document, "peak": 99}}
    async with aiohttp.ClientSession() as session:
        watching = Watching(session, upstream, 0.01)
        await eventually(lambda: watching.watcher.ready)
        assert watching.gate.ledger.violations == 0
        await watching.stop()


async def test_busy_share_is_that_of_the_time_between_two_heartbeats(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capabilities, "HEARTBEAT_EVERY_S", 0.05)
    [pool] = upstream
    async with aiohttp.ClientSession() as session:
        watching = Watching(session, upstream, 0.01)
        pool.changes = {"document": {**pool.status().document, "busy_seconds_total": 1.0}}
        await eventually(lambda: watching.watcher.busy_ratio == 0.0)
        pool.changes = {"document": {**pool.status().document, "busy_seconds_total": 9.0}}
        await eventually(lambda: watching.watcher.busy_ratio == 1.0)
        await watching.stop()


async def test_claim_that_the_upstream_has_is_compared_with_the_one_that_was_sent(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[tuple[object, ...]] = []
    monkeypatch.setattr(ClaimSender, "reported", lambda _, *known: reported.append(known))
    async with aiohttp.ClientSession() as session:
        watching = Watching(session, upstream, 0.01)
        await eventually(lambda: watching.watcher.ready)
        assert reported[:1] == [report.claim_of({})]
        await watching.stop()


async def test_stream_is_opened_again_once_there_are_many_more_to_read(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (engine_watcher, capabilities):
        monkeypatch.setattr(module, "HEARTBEAT_EVERY_S", 0.5)
    async with aiohttp.ClientSession() as session:
        watching = Watching(session, upstream, 0.1)
        await eventually(lambda: watching.watcher.ready)
        watching.every_s = 0.15
        for _ in range(2):  # a heartbeat, maybe after a change
            await watching.hears()
        assert upstream.asked == ["100"]
        watching.every_s = 0.21
        await eventually(lambda: len(upstream.asked) == 2)
        assert upstream.asked == ["100", "210"]
        assert watching.watcher.ready, "it was never away"
        assert not watching.watcher.failed
        watching.every_s = 99.0
        await eventually(lambda: len(upstream.asked) == 3)
        assert upstream.asked[-1] == "500", "no less often than heartbeats"
        await watching.stop()


async def test_change_of_what_admission_does_not_read_makes_no_report(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    report_of = report.report_of

    def counting(*given: object) -> object:
        made.append(given)
        return report_of(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(report, "report_of", counting)
    async with aiohttp.ClientSession() as session:
        watching = Watching(session, upstream, 0.0)
        await eventually(lambda: watching.watcher.ready)
        count = len(made)
        pool = upstream.pools["cloud"]
        pool.changes = {"document": (pool.status().document) | {"gpu": "another"}}
        assert upstream.changed is not None
        upstream.changed()
        await eventually(lambda: (watching.watcher.document or {}).get("gpu") == "another")
        assert len(made) == count
        grant(upstream.slots, "another", 3)
        upstream.changed()
        await eventually(lambda: watching.gate.ledger.foreign == 3)
        assert len(made) > count
        await watching.stop()


async def test_silence_ends_the_body_after_the_limit() -> None:
    limit, began = StreamTimeout(0.05), time.monotonic()
    with pytest.raises(TimeoutError):
        async with limit:
            await asyncio.Event().wait()
    assert limit.expired
    assert time.monotonic() - began >= 0.05


async def test_resets_keep_the_body_running_and_leave_nothing_behind() -> None:
    limit = StreamTimeout(0.2)
    async with limit:
        for _ in range(10):
            await asyncio.sleep(0.05)
            limit.reset()
    await asyncio.sleep(0.4)
    assert not limit.expired


async def test_reset_after_a_blocked_event_loop_is_in_time() -> None:
    loop = asyncio.get_running_loop()
    limit, sound = StreamTimeout(0.05), asyncio.Event()
    async with limit:
        loop.call_later(0.01, sound.set)
        time.sleep(0.2)  # noqa: ASYNC251 (the loop is to stand still)
        await sound.wait()
        limit.reset()
    assert not limit.expired


async def test_error_of_the_body_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="own"):
        async with StreamTimeout(1.0):
            raise ValueError("own")

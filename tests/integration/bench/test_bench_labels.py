"""Runs from end to end, and whether they earned their label."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.load.endpoint import Endpoint, EndpointError
from orch_sidecar.tools.bench.results.result import Result, Status, row_of
from tests.integration.bench.decoding import Decoding
from tests.integration.bench.measuring import (
    CLOSED,
    OFFLINE,
    POISSON,
    SINGLE,
    known,
    measured,
    post_of_others,
    the_same,
    url_of,
)
from tests.integration.running import Running, Start, all_ready, eventually, pools
from tests.integration.scripted_engine import Engine, ScriptedEngine

pytestmark = pytest.mark.usefixtures("fast_reports")


def reasons(result: Result) -> str:
    assert result.status is Status.INVALID
    return "; ".join(result.reasons)


@pytest.mark.parametrize("scenario", [CLOSED, POISSON])
async def test_batched_online_is_measured(cloud: Running, scenario: Any) -> None:
    result = await measured(url_of(cloud), replace(scenario, warm_up_requests=3))
    assert (result.status, result.reasons) == (Status.PRELIMINARY, [])
    batches = known(result.batches)
    assert batches.largest > 1
    assert result.counts.answered == scenario.least_requests
    assert row_of(result).batch == max(1, round(batches.mean))


async def test_offline_is_measured(offline: Running) -> None:
    result = await measured(url_of(offline), OFFLINE)
    assert (result.status, result.reasons) == (Status.PRELIMINARY, [])
    assert known(result.batches).largest == 8
    assert result.counts.answered == 30
    assert {call.due_s for call in result.calls} == {result.calls[0].due_s}


async def test_pool_of_several_is_measured_by_its_name(
    engine: ScriptedEngine, at_home: ScriptedEngine, start: Start
) -> None:
    Decoding(engine)
    sidecar = await all_ready(await start(**pools(home=at_home, cloud=engine)))
    with pytest.raises(EndpointError, match="a pool must be given: the document has"):
        await measured(url_of(sidecar), SINGLE)
    result = await measured(url_of(sidecar), SINGLE, pool="home")
    assert (result.status, result.engine.pool) == (Status.PRELIMINARY, "home")
    assert engine.generating == []


async def test_engine_that_restarts_in_the_window_makes_it_invalid(
    home: Running, at_home: ScriptedEngine
) -> None:
    running = asyncio.create_task(measured(url_of(home), replace(SINGLE, least_seconds=0.5)))
    await eventually(lambda: len(at_home.generating) > 2)
    await at_home.restart()
    Decoding(at_home)
    result = await running
    assert reasons(result) == "the engine was restarted"
    assert result.figures is not None
    with pytest.raises(ValueError, match="the engine was restarted"):
        row_of(result)


async def test_engine_that_fails_at_the_end_makes_it_invalid_and_keeps_the_figures(
    home: Running, at_home: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orch_sidecar.tools.bench.load.driver.RETRY_DELAY_S", 0.01)
    running = asyncio.create_task(measured(url_of(home), replace(SINGLE, least_seconds=0.2)))
    await eventually(lambda: len(at_home.generating) > 2)
    await at_home.stop()
    result = await running
    assert "the engine's work is unknown: the engine is" in reasons(result)
    assert result.counts.answered >= 2


async def test_run_in_which_nothing_was_batched_is_invalid_as_batched_online(
    cloud: Running,
) -> None:
    sparse = await measured(url_of(cloud), replace(POISSON, rate_per_s=2.0, least_requests=2))
    hint = r"2 requests/s of \d+ ms rarely overlap: --rate (\d+) keeps"
    said = known(re.search(hint, reasons(sparse)))
    latency = known(known(sparse.figures).times_s["latency"])
    assert 2.0 <= int(said[1]) * latency.mean + 0.001 < 2.0 + latency.mean + 0.002
    alone = replace(CLOSED, clients=1)
    assert "nothing was batched" in reasons(await measured(url_of(cloud), alone))
    assert (await measured(url_of(cloud), alone, trial=True)).status is Status.PRELIMINARY


async def test_identical_requests_are_never_shared_or_the_run_is_invalid(
    cloud: Running, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared: as if somebody on the way took the header away."""
    result = await measured(url_of(cloud), CLOSED, prompts=the_same)
    assert result.status is Status.PRELIMINARY
    assert len(engine.generating) == 24
    message = Endpoint.message

    def sharing(self: Endpoint, path: str, body: bytes, more: Mapping[str, str]) -> bytes:
        kept = {name: each for name, each in self.fields.items() if name != "X-Orch-No-Coalesce"}
        return message(replace(self, fields=kept), path, body, more)

    monkeypatch.setattr(Endpoint, "message", sharing)
    result = await measured(url_of(cloud), CLOSED, prompts=the_same)
    assert len(engine.generating) < 2 * 24
    assert "answers were shared (coalesced)" in reasons(result)


async def test_counts_that_come_late_are_waited_for(
    home: Running, at_home: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two documents are alike meanwhile, and show nothing."""
    report = Decoding.report

    def late(self: Decoding) -> None:
        asyncio.get_running_loop().call_later(0.4, report, self)

    monkeypatch.setattr(Decoding, "report", late)
    result = await measured(url_of(home), replace(SINGLE, warm_up_requests=2))
    assert (result.status, result.reasons) == (Status.PRELIMINARY, [])


@pytest.mark.parametrize("scenario", [CLOSED, OFFLINE])
async def test_request_that_is_under_way_before_it_is_refused_before_anything_is_sent(
    another: Engine,
    start: Start,
    scenario: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is taken before the window and ends after it: no count of requests shows it."""
    monkeypatch.setattr("orch_sidecar.tools.bench.load.capabilities.IDLE_TIMEOUT_S", 0.5)
    profile = "offline" if scenario is OFFLINE else "cloud"
    engine = await another(profile=profile, slots=8)
    Decoding(engine)
    sidecar = await start(engine_url=engine.url, profile=profile)
    long = asyncio.create_task(post_of_others(sidecar, max_tokens=2000))
    await eventually(lambda: engine.present)
    with pytest.raises(Unavailable, match="not idle before the run: it serves requests of oth"):
        await measured(url_of(sidecar), scenario, restarts=1)
    assert not long.done()
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)
    assert capsys.readouterr().err.endswith("the run begins again (1 of 1 times left)\n")
    assert len(engine.generating) == 1


async def test_request_of_others_begins_the_run_again_at_once(
    home: Running,
    at_home: ScriptedEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And where no restart is left it ends at once, invalid."""
    monkeypatch.setattr("orch_sidecar.tools.bench.load.capabilities.WATCH_INTERVAL_S", 0.1)

    async def run_beside_others(restarts: int) -> Result:
        begun = len(at_home.generating)
        scenario = replace(SINGLE, least_seconds=1.0 if restarts else 600.0)
        running = asyncio.create_task(measured(url_of(home), scenario, restarts=restarts))
        await eventually(lambda: len(at_home.generating) > begun + 2)
        for _ in range(3):
            await post_of_others(home, max_tokens=3)
        return await running

    result = await run_beside_others(restarts=2)
    assert (result.status, result.reasons) == (Status.PRELIMINARY, [])
    assert result.counts.sent < len(at_home.generating) - 4
    assert re.fullmatch(
        r"(a request|\d requests) of others entered the engine within \d s of the start; "
        r"the run begins again \(2 of 2 times left\)\n",
        capsys.readouterr().err,
    )
    result = await run_beside_others(restarts=0)
    assert "of others entered the engine within" in result.reasons[0]
    assert "the engine served other clients" in reasons(result)


async def test_our_refusals_do_not_hide_the_requests_of_others(
    home: Running, at_home: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the others are served this client is turned away, more often than they are let in."""
    monkeypatch.setattr("orch_sidecar.tools.bench.load.driver.RETRY_DELAY_S", 0.01)
    unqueued = Endpoint.of(url_of(home), {"X-Orch-Do-Not-Queue": "true"})
    scenario = replace(SINGLE, least_seconds=1.0)
    running = asyncio.create_task(measured(url_of(home), scenario, endpoint=unqueued))
    await eventually(lambda: len(at_home.generating) > 2)
    await post_of_others(home, max_tokens=50)
    result = await running
    assert result.counts.refused >= 2
    assert result.counts.sent >= len(at_home.generating)
    assert "the engine served other clients" in reasons(result)

"""`orch tune` on a scripted engine of 4 slots, behind a real sidecar."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from orch_sidecar.tools.bench.load.endpoint import EndpointError
from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.simulate.traffic import Workload
from orch_sidecar.tools.sizing.tune import RATES, tune
from tests.integration.bench.measuring import INPUT_TOKENS, OUTPUT_TOKENS, known, plan, url_of
from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine

pytestmark = pytest.mark.usefixtures("fast_reports", "few_requests")


ONLINE = Scenario(Label.BATCHED_ONLINE, 1, 0.3, arrivals=Arrivals.POISSON, rate_per_s=1.0)
WITH_SLO = replace(ONLINE, slo_ms={"ttft": 1e6, "tpot": 1e6})
TRAFFIC = Workload(0.0, INPUT_TOKENS, OUTPUT_TOKENS, spread=0.0)


@pytest.fixture
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orch_sidecar.tools.bench.load.capabilities.REPORT_INTERVAL_S", 0.03)
    rates = {**RATES, "requests": 10, "most_trials": 2}
    monkeypatch.setattr("orch_sidecar.tools.sizing.tune.RATES", rates)


async def test_curve_and_rate_are_those_of_the_engine(
    cloud: Running, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    found = await tune(plan(url_of(cloud), WITH_SLO), TRAFFIC)
    assert [point.clients for point in found.sweep.points] == [1, 2, 4]
    assert {1, 2, 4} <= {point.batch for point in found.model.curve.points}
    step_ms = found.model.curve.at(4)
    assert step_ms == pytest.approx(4.0, rel=0.01), "the script's, whatever the batch"
    assert found.decision.slots == 8  # twice what was measured: all of it would be kept
    rate = known(found.rate)
    assert rate.best is not None
    assert all(trial.kept for trial in rate.trials)
    # A busy machine is told of, too: the client may be the bottleneck.
    assert capsys.readouterr().err.count("met the SLO") == len(rate.trials)
    classes = {request.header("x-vllm-priority") for request in engine.generating}
    assert classes == {"0", "1"}, "the curve is measured with bulk, the rate with interactive"


async def test_interruption_ends_it_with_the_reason(cloud: Running, engine: ScriptedEngine) -> None:
    long = replace(ONLINE, least_seconds=600.0)
    running = asyncio.create_task(tune(plan(url_of(cloud), long), TRAFFIC))
    await eventually(lambda: len(engine.generating) > 3)
    running.cancel()
    with pytest.raises(EndpointError, match="early at 1 clients: the user interrupted the run"):
        await running


async def test_interruption_of_the_search_is_a_doubt_of_what_was_decided(
    cloud: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(line: str) -> None:
        if "met the SLO" in line:
            running.cancel()

    monkeypatch.setattr("orch_sidecar.tools.bench.runs.series.print_error", report)
    running = asyncio.create_task(tune(plan(url_of(cloud), WITH_SLO), TRAFFIC))
    found = await running
    assert [trial.kept for trial in known(found.rate).trials] == [True]
    assert found.decision.doubts[-1].startswith("the search for a rate ended early: ")

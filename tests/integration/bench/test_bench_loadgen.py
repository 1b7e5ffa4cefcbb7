"""Runs whose requests MLCommons' own load generator sends, on scripted engines."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from orch_sidecar.tools.bench.load.scenario import Scenario
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.runs import loadgen
from orch_sidecar.tools.facts.tables.notes import Arrivals
from tests.integration.bench.measuring import (
    CLOSED,
    OFFLINE,
    POISSON,
    SINGLE,
    known,
    measured,
    url_of,
)
from tests.integration.running import Running

TIMES = [f"latency {at}, ms" for at in ("mean", "p50", "p90", "p95", "p99")]


async def sent(running: Running, scenario: Scenario, folder: Path) -> Result:
    at_once = scenario is OFFLINE
    scenario = replace(scenario, loadgen=loadgen.check(scenario))
    result = await measured(url_of(running), scenario, loadgen_logs=folder)
    used = known(result.loadgen)
    assert used.folder == str(folder)
    assert result.scenario.loadgen == scenario.loadgen
    text = (folder / "mlperf_log_detail.txt").read_text()
    entries = [json.loads(line.partition(":::MLLOG ")[2]) for line in text.splitlines()]
    logged = {each["key"]: each["value"] for each in entries}
    assert logged["result_query_count"] == (1 if at_once else result.counts.answered)
    assert result.counts.answered == result.counts.sent >= scenario.least_requests
    names = list(used.figures)
    assert names[0] == "tokens/s"
    assert set(TIMES) <= set(names)
    assert ("TTFT mean, ms" in names) is not at_once
    return result


async def test_single_stream_sends_the_next_query_when_one_has_ended(
    home: Running, tmp_path: Path
) -> None:
    result = await sent(home, SINGLE, tmp_path / "logs")
    for earlier, later in pairwise(result.calls):
        assert known(later.sent_s) >= known(earlier.ended_s)
        assert later.due_s is None


async def test_server_sends_queries_when_they_are_due(cloud: Running, tmp_path: Path) -> None:
    result = await sent(cloud, POISSON, tmp_path / "logs")
    for call in result.calls:
        assert known(call.due_s) <= known(call.sent_s)


async def test_offline_sends_all_queries_at_once(offline: Running, tmp_path: Path) -> None:
    result = await sent(offline, OFFLINE, tmp_path / "logs")
    assert len({call.due_s for call in result.calls}) == 1


@pytest.mark.parametrize("scenario", [CLOSED, replace(POISSON, arrivals=Arrivals.GAMMA)])
def test_load_that_it_cannot_send_is_refused(scenario: Scenario) -> None:
    with pytest.raises(ValueError, match="SingleStream, Server, Offline"):
        loadgen.check(scenario)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)
    with pytest.raises(ValueError, match="pip install mlcommons-loadgen"):
        loadgen.check(SINGLE)

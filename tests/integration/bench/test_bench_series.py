"""Several runs by one command: the search for a rate, and a sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.tools.bench import cli, reports
from orch_sidecar.tools.bench.load.driver import Interrupted
from orch_sidecar.tools.bench.load.endpoint import EndpointError
from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.bench.results.sweep import Sweep
from orch_sidecar.tools.bench.runs.run import measure
from orch_sidecar.tools.bench.runs.series import RateSearch
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.facts.tables.table import check, valid_rows
from tests.integration.bench.decoding import Decoding
from tests.integration.bench.measuring import known, post_of_others, prompts_file, url_of
from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.wire import Answer

pytestmark = pytest.mark.usefixtures("fast_reports")

Run = Callable[..., Coroutine[None, None, int]]
SERIES = "orch_sidecar.tools.bench.runs.series"


@pytest.fixture
def run(cloud: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command's work, here: in a process of its own it waits a second for each look."""
    monkeypatch.setattr(f"{SERIES}.RateSearch", partial(RateSearch, requests=20))
    prompts = prompts_file(tmp_path)

    async def run_here(*words: str) -> int:
        common = ("--url", url_of(cloud), "--prompts", prompts)
        out = ("--output", str(tmp_path / "o.json"), "--facts", str(tmp_path / "f.csv"))
        options = cli.parser().parse_args([*words, *common, *out])
        return reports.report(await cli.measured(options), options)

    return run_here


ONLINE = ("batched-online", "--rate", "25", "--requests", "20", "--duration", "0")
SEARCH = (*ONLINE, "--find-rate", "--trial", "0.2", "--warm-up", "0")


def result_of(folder: Path) -> Result:
    return Result.model_validate_json((folder / "o.json").read_text(encoding="utf-8"))


def sweep_of(folder: Path) -> Sweep:
    return Sweep.model_validate_json((folder / "o.json").read_text(encoding="utf-8"))


@pytest.mark.long
async def test_search_finds_the_rate_that_the_engine_can_do(
    run: Run, tmp_path: Path, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four slots, 6 steps of 20 ms an answer: 33 a second, and those beyond it wait."""
    Decoding(engine, step_s=0.02)
    code = await run(*SEARCH, "--slo-latency-ms", "600", "--requests", "60")
    printed = capsys.readouterr()
    assert code == 0, printed.out + printed.err
    result = result_of(tmp_path)
    rate_per_s = known(result.scenario.rate_per_s)
    assert 15 < rate_per_s < 150
    assert f"largest rate that meets the SLO: {rate_per_s:.4g}/s" in printed.err
    kept = [trial.rate_per_s for trial in result.trials if trial.kept]
    missed = [trial.rate_per_s for trial in result.trials if not trial.kept]
    assert max(kept) == rate_per_s
    assert min(missed) > max(kept)
    assert all(trial.requests >= 20 for trial in result.trials)
    assert result.scenario.least_requests == 60


async def test_rate_at_which_nothing_is_batched_keeps_its_slo_and_earns_no_label(
    run: Run, tmp_path: Path, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    Decoding(engine).most = 1
    twice = partial(RateSearch, requests=20, most_trials=2)
    monkeypatch.setattr(f"{SERIES}.RateSearch", twice)
    assert await run(*SEARCH, "--burstiness", "inf", "--slo-latency-ms", "10000") == 1
    result = result_of(tmp_path)
    assert [(trial.rate_per_s, trial.kept) for trial in result.trials] == [(25, True), (50, True)]
    assert result.scenario.arrivals == "constant"
    assert result.status == "invalid"
    assert "nothing was batched" in result.reasons[0]


async def test_search_ends_where_no_rate_keeps_the_slo(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trial of 20 requests takes 0.2 s, and none is to take more than five times that."""
    assert await run(*SEARCH, "--rate", "70", "--slo-latency-ms", "1") == 1
    printed = capsys.readouterr().out
    assert "no rate met the SLO, down to 35/s: lower ones take more than 5 times --trial" in printed
    result = result_of(tmp_path)
    assert result.status == "incomplete"
    assert result.reasons[0].startswith("the search ended early: no rate met")
    assert [(trial.rate_per_s, trial.kept) for trial in result.trials] == [(70, False), (35, False)]
    assert result.calls
    assert not (tmp_path / "f.csv").exists()


async def test_trial_beside_another_client_ends_the_search(
    run: Run, cloud: Running, engine: ScriptedEngine, tmp_path: Path
) -> None:
    running = asyncio.create_task(run(*SEARCH, "--slo-latency-ms", "600"))
    await eventually(lambda: len(engine.generating) > 5)
    await post_of_others(cloud, max_tokens=2)
    assert await running == 1
    result = result_of(tmp_path)
    assert result.status == "incomplete"
    assert result.reasons[0] == "the search ended early: the trial at 25/s is invalid"
    assert result.reasons[1].startswith("the engine accepted")


def fail_after_the_first(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run of a series is measured; those after it fail."""
    measured = [measure]

    async def once(*arguments: Any, **more: Any) -> Result:
        if measured:
            return await measured.pop()(*arguments, **more)
        raise error

    monkeypatch.setattr(f"{SERIES}.measure", once)


@pytest.mark.parametrize(
    "error",
    [Interrupted("interrupted"), EndpointError("GET /: refused"), ValueError("odd")],
)
async def test_search_that_ends_between_trials_keeps_its_results(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fail_after_the_first(error, monkeypatch)
    assert await run(*SEARCH, "--slo-latency-ms", "6000") == 1
    result = result_of(tmp_path)
    assert (result.status, result.reasons[0]) == ("incomplete", f"the search ended early: {error}")
    assert [(trial.rate_per_s, trial.kept) for trial in result.trials] == [(25, True)]
    with pytest.raises(type(error)):
        await run(*SEARCH, "--slo-latency-ms", "6000")


async def test_interruption_of_a_trial_is_written_as_incomplete(
    run: Run, tmp_path: Path, engine: ScriptedEngine
) -> None:
    words = (*SEARCH[:-3], "60", "--warm-up", "0", "--slo-latency-ms", "600")
    running = asyncio.create_task(run(*words))
    await eventually(lambda: len(engine.generating) > 5)
    running.cancel()
    assert await running == 1
    assert result_of(tmp_path).status == "incomplete"


async def test_sweep_measures_every_concurrency_with_prompts_of_its_own(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "sweep.svg"
    pictures = ("--plot", str(plot), "--report", str(tmp_path / "sweep.html"))
    code = await run("sweep", "--concurrency", "1,2,4", "--duration", "0.3", *pictures)
    printed = capsys.readouterr()
    assert code == 0, printed.out + printed.err
    found = sweep_of(tmp_path)
    assert not found.ended_by
    assert [point.clients for point in found.points] == [1, 2, 4]
    assert [point.batch for point in found.points] == pytest.approx([1, 2, 4], rel=0.2)
    assert [point.result.status for point in found.points] == ["unbatched", *2 * ["preliminary"]]
    assert found.points[0].speed_up == 1
    assert known(found.points[2].speed_up) > 1
    assert found.fit is not None
    assert [result.scenario.seed for result in found.results] == [0, 1, 2]
    assert len({result.scenario.cache_salt for result in found.results}) == 3
    assert "1 client: no step decoded more than one sequence" in printed.out
    assert "no row, concurrency 1: " in printed.err
    table = files.read(tmp_path / "f.csv")
    assert [placed.row.batch for placed in valid_rows(table)] == [2, 4]
    assert check(table) == []
    assert b"<!-- Time per output token -->" in plot.read_bytes()
    assert "Time per output token" in (tmp_path / "sweep.html").read_text(encoding="utf-8")


async def test_sweep_whose_endpoint_fails_keeps_its_results(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_after_the_first(EndpointError("GET /v1/capabilities: refused"), monkeypatch)
    assert await run("sweep", "--concurrency", "2,4", "--duration", "0.2") == 1
    found = sweep_of(tmp_path)
    assert [point.clients for point in found.points] == [2]
    assert found.ended_by
    why = "Incomplete:\n  at 4 clients: GET /v1/capabilities: refused"
    assert why in capsys.readouterr().out
    with pytest.raises(EndpointError):
        await run("sweep", "--concurrency", "2,4", "--duration", "0.2")


async def test_interrupted_sweep_keeps_its_results(
    run: Run, tmp_path: Path, engine: ScriptedEngine
) -> None:
    decoding = engine.answer

    async def interrupts(answer: Answer) -> None:
        """By the first that is more than two clients' work, however long the rest would take."""
        if engine.present > 2:
            running.cancel()
        await decoding(answer)

    engine.answer = interrupts
    running = asyncio.create_task(run("sweep", "--concurrency", "2,4", "--duration", "0.5"))
    assert await running == 1
    found = sweep_of(tmp_path)
    assert known(found.ended_by).startswith("at 4 clients: the user interrupted the run")
    assert found.points[0].clients == 2


async def test_row_is_written_where_the_result_could_not_be(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = files.write

    def full(path: Path, content: str | bytes) -> None:
        if path.suffix == ".json":
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(files, "write", full)
    online = ("batched-online", "--concurrency", "4", "--requests", "20", "--duration", "0")
    assert await run(*online) == 1
    assert "no result: " in capsys.readouterr().err
    assert len(valid_rows(files.read(tmp_path / "f.csv"))) == 1

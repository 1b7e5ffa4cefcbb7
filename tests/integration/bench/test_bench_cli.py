"""`orch bench` as a command: exit codes, files, rows, and Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from orch_sidecar.tools.bench.results.result import Result
from orch_sidecar.tools.facts.tables import files
from orch_sidecar.tools.facts.tables.row import Label, Row
from orch_sidecar.tools.facts.tables.table import valid_rows
from tests.integration.bench.measuring import known, post_of_others, prompts_file, url_of
from tests.integration.running import Running, eventually
from tests.integration.scripted_engine import ScriptedEngine
from tests.integration.scripts import endless
from tests.patience import HANG_S

KEY, TOKEN = "sk-never-to-be-seen", "never-to-be-seen-either"
ORCH = (sys.executable, "-W", "error", "-m", "orch_sidecar")


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has ended, and its files."""

    code: int
    printed: str
    output: Path
    facts: Path

    @property
    def result(self) -> Result:
        return Result.model_validate_json(self.output.read_text(encoding="utf-8"))

    @property
    def rows(self) -> list[Row]:
        if not self.facts.exists():
            return []
        return [placed.row for placed in valid_rows(files.read(self.facts))]


class Bench:
    """`orch bench` in a process of its own, with three prompts of four tokens."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._words = ("--prompts", prompts_file(folder), "--warm-up", "2", "--duration", "0")

    async def start(self, url: str, *words: str) -> asyncio.subprocess.Process:
        """With prompts, and only as long as it must be."""
        out = ("--output", str(self._folder / "o.json"), "--facts", str(self._folder / "f.csv"))
        command = (*ORCH, "bench", *words, "--url", url, *self._words, *out)
        return await asyncio.create_subprocess_exec(
            *command,
            env=os.environ | {"OPENAI_API_KEY": KEY},
            cwd=self._folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def ended(self, process: asyncio.subprocess.Process) -> Ran:
        async with asyncio.timeout(HANG_S):
            printed, _ = await process.communicate()
        assert process.returncode is not None
        text = printed.decode()
        assert "Traceback" not in text
        found = Ran(process.returncode, text, self._folder / "o.json", self._folder / "f.csv")
        for path in (found.output, found.facts):
            content = path.read_text(encoding="utf-8") if path.exists() else ""
            assert KEY not in text + content
            assert TOKEN not in text + content
        return found

    async def run(self, url: str, *words: str) -> Ran:
        return await self.ended(await self.start(url, *words))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_measurement_is_written_with_a_row_that_passes_the_check(
    home: Running, at_home: ScriptedEngine, bench: Bench
) -> None:
    secret = ("--header", f"X-Token: {TOKEN}")
    ran = await bench.run(url_of(home), "single-stream", "--requests", "64", *secret, "--report")
    assert ran.code == 0, ran.printed
    assert "single_stream: preliminary" in ran.printed
    assert "per stream p50, tokens/s" in ran.printed
    result = ran.result
    assert (result.counts.answered, result.scenario.seed) == (64, 0)
    assert result.engine.given == []
    assert result.client.host["uvloop"]
    assert result.scenario.prompts == "3 of the file prompts.jsonl"
    page = ran.output.with_suffix(".html")
    assert f"report: {page}" in ran.printed
    assert "Time to first token" in page.read_text(encoding="utf-8")
    [row] = ran.rows
    assert (row.measurement_type, row.batch) == (Label.SINGLE_STREAM, 1)
    check = (*ORCH, "facts", "check", str(ran.facts))
    checking = await asyncio.create_subprocess_exec(*check)
    assert await checking.wait() == 0
    assert at_home.generating[0].header("authorization") == f"Bearer {KEY}"
    assert at_home.generating[0].header("x-token") == TOKEN


async def test_invalid_result_exits_with_1_and_makes_no_row(
    home: Running, at_home: ScriptedEngine, bench: Bench
) -> None:
    process = await bench.start(url_of(home), "single-stream", "--requests", "60")
    await eventually(lambda: len(at_home.generating) > 10)
    await post_of_others(home, max_tokens=2)
    ran = await bench.ended(process)
    assert ran.code == 1
    assert "single_stream: invalid" in ran.printed
    assert "the engine served other clients" in ran.printed
    assert (
        f"no row: {ran.facts}: the result is invalid: the engine accepted 61 requests"
        in ran.printed
    )
    assert (ran.result.status, ran.rows) == ("invalid", [])


async def test_interruption_writes_what_there_is_as_incomplete_and_exits_with_1(
    home: Running, at_home: ScriptedEngine, bench: Bench
) -> None:
    process = await bench.start(url_of(home), "single-stream", "--duration", "600")
    await eventually(lambda: len(at_home.generating) > 10)
    process.send_signal(signal.SIGINT)
    ran = await bench.ended(process)
    assert ran.code == 1
    assert "single_stream: incomplete" in ran.printed
    assert "\nWhy:\n  the user interrupted the run" in ran.printed
    result = ran.result
    assert (result.status, ran.rows) == ("incomplete", [])
    assert result.counts.answered >= 8
    assert known(result.batches).largest == 1


async def test_interruption_of_loadgen_writes_what_there_is_though_its_test_goes_on(
    cloud: Running, engine: ScriptedEngine, bench: Bench
) -> None:
    rate = ("--rate", "60", "--requests", "6000", "--loadgen")
    process = await bench.start(url_of(cloud), "batched-online", *rate)
    await eventually(lambda: len(engine.generating) > 10)
    process.send_signal(signal.SIGINT)
    ran = await bench.ended(process)
    assert ran.code == 1, ran.printed
    assert (ran.result.status, ran.result.loadgen) == ("incomplete", None)


async def test_second_interruption_does_not_wait_for_the_engine(
    home: Running, at_home: ScriptedEngine, bench: Bench
) -> None:
    process = await bench.start(url_of(home), "single-stream", "--duration", "600")
    await eventually(lambda: len(at_home.generating) > 10)
    process.send_signal(signal.SIGINT)
    await eventually(lambda: not at_home.present)
    await asyncio.sleep(0.3)
    process.send_signal(signal.SIGINT)
    ran = await bench.ended(process)
    assert ran.code == 1
    assert "work is unknown: interrupted before the engine's next report" in ran.printed
    assert ran.result.status == "incomplete"
    assert ran.result.batches is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_interruption_of_the_warm_up_ends_cleanly_and_writes_nothing(
    home: Running, at_home: ScriptedEngine, bench: Bench, number: signal.Signals
) -> None:
    at_home.answer = endless
    process = await bench.start(url_of(home), "single-stream")
    await eventually(lambda: at_home.present)
    process.send_signal(number)
    ran = await bench.ended(process)
    assert ran.code == 1
    assert ran.printed == "orch bench single-stream: the user interrupted the run\n"
    assert not ran.output.exists()

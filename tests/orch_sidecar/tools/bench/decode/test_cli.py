"""`orch bench decode`, as it is typed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from orch_sidecar.tools.bench import cli
from orch_sidecar.tools.bench.decode import cli as decode
from orch_sidecar.tools.bench.decode.result import Config
from orch_sidecar.tools.bench.decode.schedule import TimedStep
from tests.orch_sidecar.tools.drawing.html_reader import Page

TINY = ("decode", "--work", "9", "--nreq", "12", "--tokens", "3", "--bmax", "4")
CAPITALS = re.compile(r"^([A-Z]+[0-9A-Z]*) ", re.MULTILINE)


def main(words: Sequence[str]) -> int:
    """The exit code of `orch bench` with these words."""
    try:
        cli.main([*words])
    except SystemExit as ended:
        return int(str(ended.code))
    return 0


def test_runs_steps_on_a_cpu_and_prints_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TINY) == 0
    printed = capsys.readouterr().out
    # The note is of weights that fit in the cache, which not every machine tells the size of.
    heads = [
        head for head in CAPITALS.findall(printed) if head not in ("NOTE", "BUSY", "OVERLOADED")
    ]
    assert heads == ["DEVICE", "CONFIG", "GPU", "TTFT", "E2E", "STEPS", "GAPS"]
    assert "| tokens: 36 " in printed


def test_takes_the_options_of_the_papers_program(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--nreq=5 --lambda=60 --tokens=3 --bmax=8 --window_ms=3 --work=16384"
    assert main(["decode", *words.split()]) == 0
    expected = "CONFIG nreq=5 lambda=60.0/s tokens=3 Bmax=8 window_ms=3.00 work=16384\n"
    assert expected in capsys.readouterr().out


def test_writes_what_it_measured_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.json"
    assert main([*TINY, "--json", str(file)]) == 0
    assert "CONFIG" in capsys.readouterr().out
    printed = json.loads(file.read_text())
    assert printed["device"]["kind"] == "cpu"
    [run] = printed["runs"]
    assert sum(each["batch"] * each["steps"] for each in run["points"]) == 36
    assert 0 < run["gap_ms"]["p50"] <= run["gap_ms"]["most"]
    assert run["device_ms"] > 0
    requests = run["requests"]
    assert requests["output_tokens"] / requests["window_s"] <= run["tokens_per_s_device"]


def test_sweep_measures_each_batch_once_by_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--sweep", "4,1,2,2", "--steps", "7", "--json", "-"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"] == []
    assert [(each["batch"], each["steps"]) for each in printed["points"]] == [
        (1, 7),
        (2, 7),
        (4, 7),
    ]
    assert printed["fit"] is not None


def test_sweep_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--sweep", "1,2", "--steps", "3"]) == 0
    out = capsys.readouterr().out
    assert "tokens/s  step ms" in out
    assert "t(b) was not fitted" in out


def test_windows_are_compared_on_the_same_arrivals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--window-ms", "6,2", "--reference"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "CONFIG nreq=12 lambda=80.0/s tokens=3 Bmax=4 window_ms=2.00 work=9" in lines
    assert lines[-1].startswith("WINDOW 6 -> 2 ms: p95 TTFT ")


def test_requests_are_no_more_than_the_time_allows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in TINY if word not in ("--nreq", "12")]
    for seconds, requests in ((1e-9, 1), (1e6, 160)):
        monkeypatch.setattr(decode, "BUDGET_S", seconds)
        assert main([*words, "--json", "-"]) == 0
        assert json.loads(capsys.readouterr().out)["config"]["nreq"] == requests


@pytest.mark.parametrize(("rate_per_s", "requests"), [(1, 15), (80, 80), (1000, 125), (1e6, 125)])
def test_second_of_steps_serves_what_arrives_in_it_but_not_more_than_full_steps_do(
    rate_per_s: float, requests: int
) -> None:
    """Steps of 2 ms, full ones of 4 ms: 32 tokens take 64 ms alone, and 8 ms of full steps."""
    config = Config(nreq=1, rate_per_s=rate_per_s, tokens=32, bmax=16, seed=1)
    found = decode.requests_within(1.0, lambda b: TimedStep(b, 2.0 if b == 1 else 4.0), config)
    assert found == requests


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["--rate", "0"], "argument --rate/--lambda: '0' must be a number above 0"),
        (["--rate", "nan"], "argument --rate/--lambda: 'nan' must be a number above 0"),
        (["--bmax", "0"], "argument --bmax: '0' must be an integer from 1"),
        (["--tokens", "1.5"], "argument --tokens: '1.5' must be an integer from 1"),
        (["--seed", "x"], "argument --seed: 'x' must be an integer from 0"),
        (["--nreq", "many"], "argument --nreq: 'many' must be an integer from 1"),
        (["--window-ms", "6,-2"], "argument --window-ms/--window_ms: '-2' must be a number from 0"),
        (["--sweep", "1,0"], "argument --sweep: '0' must be an integer from 1"),
    ],
)
def test_bad_usage_exits_with_2_and_names_value_and_rule(
    words: list[str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["decode", *words]) == 2
    assert printed in capsys.readouterr().err


def test_what_cannot_be_measured_or_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, "--bmax", "10000000000"]) == 1
    assert "GB are free" in capsys.readouterr().err
    assert main([*TINY, "--json", str(tmp_path / "none" / "found.json")]) == 2
    assert "no such folder" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["decode"]) == 1
    assert "needs PyTorch: `pip install torch`" in capsys.readouterr().err


def test_command_writes_the_report_beside_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.html"
    assert main([*TINY, "--report", str(path)]) == 0
    assert f"report: {path}" in capsys.readouterr().out
    assert "Throughput" in Page(path.read_text(encoding="utf-8")).charts
    assert [each.name for each in tmp_path.iterdir()] == ["a.html"]

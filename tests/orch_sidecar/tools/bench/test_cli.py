"""`orch bench` before it measures anything: what its words mean, what is refused, and with which
exit code."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.tools.bench import cli
from orch_sidecar.tools.bench.load.scenario import Scenario, schedule
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label
from tests.orch_sidecar.tools.facts.rows import HEADER

CONV = str(Path(__file__).parents[3] / "traces" / "azure_llm_2023_conv.csv")
ONLINE = ("batched-online", "--rate", "1")
LOOP = ("batched-online", "--concurrency")


def scenario(label: Label, *words: str) -> Scenario:
    return cli.scenario_of(cli.parser().parse_args([label.value.replace("_", "-"), *words]))


def code_of(*words: str) -> int:
    """The exit code of a command that is run here."""
    try:
        cli.main(list(words))
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize(
    ("label", "words", "least", "stated"),
    [
        (Label.SINGLE_STREAM, "", (64, 600.0), {"arrivals": Arrivals.ONE_BY_ONE, "clients": 1}),
        (Label.OFFLINE, "", (1024, 600.0), {"arrivals": Arrivals.AT_ONCE}),
        (Label.OFFLINE, "--requests 9 --duration 0", (9, 0.0), {"arrivals": Arrivals.AT_ONCE}),
        (Label.BATCHED_ONLINE, "--rate 8 --slo-ttft-ms 500", (662, 600.0),
         {"arrivals": Arrivals.POISSON, "rate_per_s": 8.0, "slo_ms": {"ttft": 500.0}}),
        (Label.BATCHED_ONLINE, "--rate 8 --burstiness 0.5", (662, 600.0),
         {"arrivals": Arrivals.GAMMA, "rate_per_s": 8.0, "burstiness": 0.5}),
        (Label.BATCHED_ONLINE, "--rate 8 --burstiness 1", (662, 600.0),
         {"arrivals": Arrivals.GAMMA, "rate_per_s": 8.0, "burstiness": 1.0}),
        (Label.BATCHED_ONLINE, "--rate 8 --burstiness inf", (662, 600.0),
         {"arrivals": Arrivals.CONSTANT, "rate_per_s": 8.0}),
        (Label.BATCHED_ONLINE, "--concurrency 8 --requests 9 --seed 3", (9, 600.0),
         {"arrivals": Arrivals.CLOSED_LOOP, "clients": 8, "seed": 3}),
    ],
)  # fmt: skip
def test_options_make_a_scenario_by_default_of_the_minimum_of_mlperf(
    label: Label, words: str, least: tuple[int, float], stated: dict[str, Any]
) -> None:
    assert scenario(label, *words.split()) == Scenario(label, *least, warm_up_requests=4, **stated)


def test_trace_determines_the_schedule_and_the_length_of_a_run() -> None:
    words = ("--trace", CONV, "--trace-window", "10:20", "--time-factor", "1/2", "--seed", "4")
    found = scenario(Label.BATCHED_ONLINE, *words, "--length-factor", "0.5", "--bulk-clients", "3")
    whole = scenario(Label.BATCHED_ONLINE, "--trace", CONV)
    assert found.trace is not None
    assert whole.trace is not None
    assert (found.arrivals, found.rate_per_s, found.seed) == (Arrivals.TRACE, None, 4)
    assert (found.trace.bulk_clients, found.trace.window_s) == (3, (10.0, 20.0))
    part = [each for each, _, _ in whole.replay if 10 <= each.at_s < 20]
    assert [2 * at_s + 10 for at_s in schedule(found)] == pytest.approx(
        [each.at_s for each in part]
    )
    assert found.least_requests == found.trace.requests == len(part) > 10
    assert [each.prompt_tokens for each, _, _ in found.replay] == [
        round(each.prompt_tokens / 2) for each in part
    ]
    assert whole.trace.window_s == (0.0, None)


@pytest.mark.parametrize(
    "header",
    ["Authorization: Bearer s\u00e9cret", "s\u00e9cret", "A b: secret", "A: secret\r\nB: c"],
)
def test_header_that_cannot_be_sent_is_rejected_without_its_value(
    header: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        scenario(Label.SINGLE_STREAM, "--header", header)
    error = capsys.readouterr().err
    assert "must be 'Name: value' in ASCII" in error
    assert "cret" not in error.split("error:")[1]
    assert cli.header("X-Orch-Class:  bulk ") == ("X-Orch-Class", "bulk")
    assert cli.header("X-Empty:") == ("X-Empty", "")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("batched-online",), "one of the arguments --rate --concurrency --trace is required"),
        (("--trace", CONV, "--rate", "1"), "--rate: not allowed with argument --trace"),
        ((*ONLINE, "--concurrency", "4"), "not allowed with argument --rate"),
        ((*LOOP, "1"), "argument --concurrency: '1' must be an integer from 2"),
        ((*ONLINE, "--rate", "0"), "argument --rate: '0' must be a number above 0"),
        ((*ONLINE, "--burstiness=-inf"), "'-inf' must be a number above 0"),
        ((*ONLINE, "--requests", "0"), "argument --requests: '0' must be an integer from 1"),
        ((*ONLINE, "--seed", "-1"), "argument --seed: '-1' must be an integer from 0"),
        ((*ONLINE, "--duration", "-1"), "argument --duration: '-1' must be a number from 0"),
        ((*ONLINE, "--header", "X-Orch-Pool: home"), "'X-Orch-Pool' must not be set: use --pool"),
        ((*ONLINE, "--header", "x-orch-no-coalesce: false"), "never coalesces requests"),
        ((*ONLINE, "--header", "Content-Length: 0"), "it follows from the body"),
        (("sweep", "--plot", "x.gif"), "'x.gif' must end in .png or .svg"),
        ((*ONLINE, "--output", "/nowhere/x.json"), "it cannot be written: no such folder"),
        ((*ONLINE, "--output", "f.csv"), "argument --output: 'f.csv' must end in .json"),
        ((*ONLINE, "--facts", "/"), "--facts /: it cannot be written: /: must be a regular file"),
        ((*ONLINE, "--report", "a.json"), "'a.json' must end in .html"),
        ((*ONLINE, "--report", "/nowhere/a.html"), "it cannot be written: no such folder"),
        ((*ONLINE, "--find-rate"), "--find-rate needs an SLO: give --slo-ttft-ms"),
        ((*ONLINE, "--bulk-clients", "4"), "--bulk-clients: it needs --trace beside it"),
        ((*ONLINE, "--bulk-trace", CONV), "--bulk-trace: it needs --trace beside it"),
        ((*LOOP, "4", "--burstiness", "1"), "--burstiness: it needs --rate beside it"),
        (("--trace", CONV, "--find-rate", "--slo-ttft-ms", "9"), "--find-rate: it needs --rate"),
    ],
)
def test_bad_usage_exits_with_2_and_names_the_rule(
    words: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(*words) == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "error"),
    [("a,b\n1,2\n", ":1"), (f'{HEADER}\nm/x,"x', ":2: invalid CSV")],
)
def test_table_that_cannot_be_appended_to_is_rejected_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, error: str
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(content, encoding="utf-8")
    assert code_of(*ONLINE, "--facts", str(table)) == 2
    assert f"{table}{error}" in capsys.readouterr().err


def test_one_file_for_two_things_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.json"
    same = str(tmp_path / "." / "f.json")
    assert code_of(*ONLINE, "--output", str(path), "--facts", same) == 2
    assert f"--facts {same}: it must not be the file of --output" in capsys.readouterr().err
    assert not path.exists()


def test_unwritable_folder_is_rejected_before_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody can make a file in /proc, not even root."""
    monkeypatch.chdir("/proc")
    assert code_of(*ONLINE) == 2
    assert "--output orch-bench.json: it cannot be written: " in capsys.readouterr().err
    assert code_of(*ONLINE, "--output", "/proc/x.json") == 2
    assert "--output /proc/x.json: it cannot be written: " in capsys.readouterr().err


def test_invalid_url_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(*ONLINE, "--url", "localhost:8080") == 1
    assert "'localhost:8080' is not the URL of an endpoint" in capsys.readouterr().err


def test_endpoint_that_is_not_there_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert code_of(*ONLINE, "--url", url) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"orch bench batched-online: GET {url}/v1/capabilities: ")
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "command", ["", "single-stream", "batched-online", "offline", "sweep", "report", "compare"]
)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(*command.split(), "--help") == 0
    printed = capsys.readouterr().out
    assert "usage: orch bench" in printed
    assert "%(" not in printed

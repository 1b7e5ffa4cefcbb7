"""What the words of `orch bench` mean, and which cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from orch_sidecar.tools.bench import cli as options
from orch_sidecar.tools.bench.cli import parser, scenario_of
from orch_sidecar.tools.bench.load.scenario import Scenario, schedule
from orch_sidecar.tools.facts.tables.notes import Arrivals
from orch_sidecar.tools.facts.tables.row import Label

CONV = str(Path(__file__).parents[3] / "traces" / "azure_llm_2023_conv.csv")


def scenario(label: Label, *words: str) -> Scenario:
    return scenario_of(parser().parse_args([label.value.replace("_", "-"), *words]))


def test_single_stream_is_one_by_one_for_the_minimum_of_mlperf() -> None:
    assert scenario(Label.SINGLE_STREAM) == Scenario(
        Label.SINGLE_STREAM, 64, 600.0, arrivals=Arrivals.ONE_BY_ONE, clients=1, warm_up_requests=4
    )


def test_online_is_poisson_at_a_rate_for_the_minimum_of_mlperf() -> None:
    assert scenario(Label.BATCHED_ONLINE, "--rate", "8", "--slo-ttft-ms", "500") == Scenario(
        Label.BATCHED_ONLINE, 662, 600.0, warm_up_requests=4,
        arrivals=Arrivals.POISSON, rate_per_s=8.0, slo_ms={"ttft": 500.0},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("burstiness", "arrivals", "kept"),
    [("0.5", Arrivals.GAMMA, 0.5), ("1", Arrivals.GAMMA, 1.0), ("inf", Arrivals.CONSTANT, None)],
)
def test_burstiness_is_of_gamma_arrivals_and_endless_of_constant_ones(
    burstiness: str, arrivals: Arrivals, kept: float | None
) -> None:
    found = scenario(Label.BATCHED_ONLINE, "--rate", "8", "--burstiness", burstiness)
    assert (found.arrivals, found.burstiness) == (arrivals, kept)


def test_concurrency_is_a_closed_loop() -> None:
    found = scenario(Label.BATCHED_ONLINE, "--concurrency", "8", "--requests", "9", "--seed", "3")
    assert (found.arrivals, found.clients, found.rate_per_s) == (Arrivals.CLOSED_LOOP, 8, None)
    assert (found.least_requests, found.seed) == (9, 3)


def test_offline_is_many_at_once() -> None:
    found = scenario(Label.OFFLINE)
    assert (found.arrivals, found.least_requests) == (Arrivals.AT_ONCE, 1024)
    assert scenario(Label.OFFLINE, "--requests", "9", "--duration", "0").least_seconds == 0.0


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
    ("words", "rule"),
    [
        (("--trace", CONV, "--find-rate", "--slo-ttft-ms", "9"), "--find-rate: it needs --rate"),
        (("--rate", "1", "--bulk-clients", "4"), "--bulk-clients: it needs --trace beside it"),
        (("--rate", "1", "--bulk-trace", CONV), "--bulk-trace: it needs --trace beside it"),
        (("--concurrency", "4", "--burstiness", "1"), "--burstiness: it needs --rate beside it"),
        (("--rate", "1", "--find-rate"), "--find-rate needs an SLO: give --slo-ttft-ms"),
    ],
)
def test_contradictory_options_are_rejected(words: tuple[str, ...], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        scenario(Label.BATCHED_ONLINE, *words)


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ((), "one of the arguments --rate --concurrency --trace is required"),
        (("--trace", CONV, "--rate", "1"), "--rate: not allowed with argument --trace"),
        (("--concurrency", "4", "--rate", "1"), "not allowed with argument --concurrency"),
        (("--concurrency", "1"), "argument --concurrency: '1' must be an integer from 2"),
        (("--rate", "0"), "argument --rate: '0' must be a number above 0"),
        (("--burstiness=-inf",), "'-inf' must be a number above 0"),
        (("--requests", "0"), "argument --requests: '0' must be an integer from 1"),
        (("--seed", "-1"), "argument --seed: '-1' must be an integer from 0"),
        (("--duration", "-1"), "argument --duration: '-1' must be a number from 0"),
        (("--header", "X-Orch-Pool: home"), "'X-Orch-Pool' must not be set: use --pool"),
        (("--header", "x-orch-no-coalesce: false"), "a measurement never coalesces requests"),
        (("--header", "Content-Length: 0"), "it follows from the body"),
    ],
)
def test_invalid_option_is_named_with_the_rule(
    words: tuple[str, ...], rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        scenario(Label.BATCHED_ONLINE, *words)
    assert caught.value.code == 2
    assert rule in capsys.readouterr().err


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


def test_header_is_a_name_and_a_value() -> None:
    assert options.header("X-Orch-Class:  bulk ") == ("X-Orch-Class", "bulk")
    assert options.header("X-Empty:") == ("X-Empty", "")

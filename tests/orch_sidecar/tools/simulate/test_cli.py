"""`orch simulate`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from orch_sidecar.cli import main

SHORT = ["simulate", "--slots", "8", "--seconds", "20", "--load", "1.5"]


def test_prints_a_table_of_the_policies(capsys: pytest.CaptureFixture[str]) -> None:
    main([*SHORT, "--slo-factor", "3"])
    out = capsys.readouterr().out
    assert out.startswith("cloud, 8 slots, ")
    for policy in ("policy", "fifo", "direct", "priority"):
        assert sum(line.startswith(f"{policy} ") for line in out.splitlines()) >= 3
    assert "goodput/s" in out


def test_json_contains_everything(capsys: pytest.CaptureFixture[str]) -> None:
    main([*SHORT, "--json", "--policies", "policy", "direct", "--slo-ms", "100"])
    document = json.loads(capsys.readouterr().out)
    assert list(document["policies"]) == ["policy", "direct"]
    assert document["interactive_ttft_slo_ms"] == 100
    assert document["engine"]["slots"] == 8
    assert document["rate_per_s"] == pytest.approx(1.5 * document["capacity_per_s"])
    interactive = document["policies"]["policy"]["classes"]["interactive"]
    assert interactive["arrived"] == interactive["served"] + sum(interactive["refused"].values())


def test_takes_slots_and_token_budgets_from_the_profile(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["simulate", "--seconds", "5", "--json", "--policies", "policy"])
    engine = json.loads(capsys.readouterr().out)["engine"]
    assert (engine["slots"], engine["step_tokens"]) == (64, 2048)
    main(["simulate", "--profile", "home", "--seconds", "5", "--json", "--policies", "policy"])
    engine = json.loads(capsys.readouterr().out)["engine"]
    assert (engine["slots"], engine["long_prefill_tokens"]) == (1, 2048)


def test_same_words_print_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    main(SHORT)
    first = capsys.readouterr().out
    main(SHORT)
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    "words",
    [
        ["--load", "0"],
        ["--load", "nan"],
        ["--load", "much"],
        ["--rate", "1", "--load", "1"],
        ["--bulk-share", "1.1"],
        ["--slots", "2.5"],
        ["--policies", "best"],
    ],
)
def test_bad_usage_exits_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["simulate", *words])
    assert exit_.value.code == 2
    assert "orch simulate: error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kv-tokens", "1000"], "can never fit in a cache of 1000"),
        (["--profile", "moon"], "no such profile"),
    ],
)
def test_error_exits_with_a_message(words: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["simulate", *words])
    assert said in str(exit_.value.code)
    assert str(exit_.value.code).startswith("orch simulate: ")


def test_help_names_the_policies_and_shows_examples() -> None:
    command = [sys.executable, "-m", "orch_sidecar", "simulate", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    for word in ("fifo", "direct", "priority", "--max-tokens-known", "examples:", "--load 2"):
        assert word in result.stdout

"""`orch simulate`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orch_sidecar.cli import main

TRACES = Path(__file__).parents[3] / "traces"
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


def test_trace_is_replayed_at_its_own_rate_or_at_a_multiple_of_the_capacity(
    capsys: pytest.CaptureFixture[str],
) -> None:
    conv = str(TRACES / "azure_llm_2023_conv.csv")
    words = ["simulate", "--trace", conv, "--trace-window", "10:70", "--length-factor", "1/8"]
    words += ["--slots", "8", "--bulk-clients", "4", "--json", "--policies", "policy"]
    documents = []
    bulk = ["--bulk-clients", "0", "--bulk-trace", str(TRACES / "mooncake_synthetic.jsonl")]
    for more in ([], ["--time-factor", "1/2"], ["--load", "2"], bulk):
        main([*words, *more])
        documents.append(json.loads(capsys.readouterr().out))
    own, twice, loaded, second = documents
    assert own["workload"]["trace"] == "azure_llm_2023_conv.csv"
    classes = own["policies"]["policy"]["classes"]
    assert classes["interactive"]["arrived"] == own["workload"]["requests"]
    assert classes["bulk"]["served"] > 4
    assert own["rate_per_s"] == pytest.approx(own["workload"]["requests"] / 60, rel=0.02)
    assert twice["rate_per_s"] == pytest.approx(2 * own["rate_per_s"])
    assert loaded["rate_per_s"] == pytest.approx(2 * loaded["capacity_per_s"])
    assert second["policies"]["policy"]["classes"]["bulk"]["arrived"] > 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--load 0", "'0' must be a number above 0"),
        ("--rate 1 --load 1", "not allowed with argument"),
        ("--bulk-share 1.1", "'1.1' must be a number from 0 to 1"),
        ("--slots 2.5", "'2.5' must be an integer"),
        ("--policies best", "'best'"),
        ("--length-factor 1/0", "'0' must be a number above 0"),
        ("--trace-window 5:5", "'5:5'"),
        ("--bulk-clients -1", "--bulk-clients"),
        ("--profile moon", "'moon'"),
        ("--kv-tokens 1000", "can never fit in a cache of 1000"),
        ("--trace moon.csv", "No such file"),
        ("--bulk-trace moon.csv", "--bulk-trace moon.csv: it needs --trace beside it"),
    ],
)
def test_error_exits_with_2_and_a_message(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["simulate", *words.split()])
    assert exit_.value.code == 2
    *usage, line = capsys.readouterr().err.splitlines()
    assert line.startswith("orch simulate: ")
    assert message in line
    assert not usage or usage[0].startswith("usage: ")

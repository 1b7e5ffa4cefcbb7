"""Counters as a real engine exports them: what happened accounts for them.

The files in `counted/` are made by `python -m tests.engine.record_traces`, which states what each
one has.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from orch_sidecar.tools.facts.commands import traces as traces_cli
from orch_sidecar.tools.facts.tables.check import valid_rows
from orch_sidecar.tools.facts.tables.table import parse
from tests.orch_sidecar.tools.facts.snapshots import CONDITIONS

FOLDER = Path(__file__).with_name("counted")
RECORDED = ("home", "cloud", "mixed", "offline")

Labels = dict[str, Any]


def sequences(name: str) -> list[Labels]:
    """The attributes of a file's sequences."""
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {each["key"]: value_of(each["value"]) for each in span["attributes"]}
        for line in lines
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
        if span["name"] == "llm_request"
    ]


def value_of(value: dict[str, Any]) -> Any:
    """The value of an attribute; OTLP/JSON writes integers as texts."""
    return int(value["intValue"]) if "intValue" in value else next(iter(value.values()))


def test_every_request_that_entered_has_a_number_but_the_one_that_was_aborted() -> None:
    numbers = {
        name: sorted({each["orch.request_number"] for each in sequences(name)}) for name in RECORDED
    }
    for name in ("home", "cloud", "offline"):
        first, *_, last = numbers[name]
        assert numbers[name] == list(range(first, last + 1))
        assert len(numbers[name]) == 6
    # Of the same engine: one generation for three, one of two sequences, one aborted, two.
    after = numbers["cloud"][-1]
    assert numbers["mixed"] == [after + 1, after + 2, after + 4, after + 5]


def unaccounted(own: list[Labels]) -> int:
    """The sequences in the engine's decode steps that are not these, from the first to the last."""
    begin = min(
        each["orch.decode_sequences_total"]
        - round(each["orch.steps"] * each["orch.batch_size.mean"])
        for each in own
    )
    counted = max(each["orch.decode_sequences_total"] for each in own) - begin
    return int(counted - sum(each["orch.steps"] for each in own))


@pytest.mark.parametrize("name", ["home", "cloud", "offline"])
def test_decode_steps_are_those_of_the_recorded_sequences(name: str) -> None:
    """Each sequence lacks the last of its steps, or two where its span ended before the reports of
    its last ones; the others of these steps count them."""
    own = sequences(name)
    assert 0 <= unaccounted(own) <= 2 * len(own)


def test_steps_of_an_untraced_sequence_are_not_accounted_for() -> None:
    """As if one of six streams had left no spans."""
    for absent in range(6):
        rest = sequences("cloud")
        steps = rest.pop(absent)["orch.steps"]
        assert unaccounted(rest) >= steps - 2 > 2 * len(rest)


@pytest.mark.parametrize("name", RECORDED)
def test_conditions_are_those_of_the_engine(name: str) -> None:
    for each in sequences(name):
        # They were recorded before engines reported what they have loaded.
        known = {key: value for key, value in CONDITIONS.items() if key != "loaded"}
        assert {key: each[f"orch.{key}"] for key in known} == known
        assert each["orch.tokens_per_step"] == 1
        assert each["orch.steps"] <= each["orch.engine_steps"] <= each["orch.steps"] + 4
        assert each["orch.prefix_cache.queries_total"] == 0, "it is off"


def test_valid_runs_make_their_rows(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(prog="orch facts")
    traces_cli.add_commands(parser.add_subparsers(required=True))
    files = [str(FOLDER / f"{name}.jsonl") for name in ("home", "cloud", "offline")]
    options = parser.parse_args(["from-otlp", *files])
    assert options.run(options) == 0
    rows = [placed.row for placed in valid_rows(parse("stdout", capsys.readouterr().out))]
    assert {row.source_tag.rpartition("/")[2]: row.measurement_type.value for row in rows} == {
        "home-1": "single_stream",
        "cloud-1": "batched_online",
        "offline-1": "offline",
    }

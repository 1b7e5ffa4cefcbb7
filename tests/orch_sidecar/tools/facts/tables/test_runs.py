"""Rows that contradict other rows of a file, or of several."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.tables.table import Table, merge, row_fields
from tests.orch_sidecar.tools.facts.labelled_rows import NOTES, altered, faults_of
from tests.orch_sidecar.tools.facts.rows import fact, fields, table

TRACED = "jaeger:orch-sidecar/exp-1"
RUN: dict[str, str | int | float] = {
    "requests": 64,
    "window_s": 13.311,
    "batch_mean": 32,
    "batch_max": 40,
    "preliminary": "yes",
}


def of_run(source_tag: str, label: Label = Label.BATCHED_ONLINE) -> tuple[str, ...]:
    """The fields of a row with the notes that each row of a run has."""
    return row_fields(fact(label, source_tag=source_tag, notes=RUN))


def test_another_place_of_one_run_is_a_fault() -> None:
    """A copy of a row that claims other hardware is no second measurement."""
    [(line, name, text)] = faults_of(altered("online"), altered("online", {"gpu": "H200"}))
    assert (line, name) == (3, "gpu")
    assert "t.csv:2:5 has 'H100' for the same measurement (one run)" in text


@pytest.mark.parametrize("tag", [TRACED, "otlp:spans.jsonl/exp-1", "a.json sha256:0123456789ab#2"])
def test_run_under_two_labels_is_a_fault_that_names_the_first(tag: str) -> None:
    own, other = of_run(tag), of_run(tag, Label.OFFLINE)
    [(line, name, text)] = faults_of(own, other)
    assert (line, name) == (3, "measurement_type")
    assert "t.csv:2 has 'batched_online' for the same run" in text


def test_renamed_file_is_the_same_run() -> None:
    own = of_run("a.json sha256:0123456789ab")
    other = of_run("b.json sha256:0123456789ab", Label.OFFLINE)
    assert [name for _, name, _ in faults_of(own, other)] == ["measurement_type"]
    numbered = of_run("a.json sha256:0123456789ab#2", Label.OFFLINE)
    assert faults_of(own, numbered) == []


def test_claim_of_a_run_that_has_another_label_is_a_fault() -> None:
    tag = "result.json sha256:0123456789ab"
    confirmed = of_run(tag, Label.OFFLINE)
    [(line, name, text)] = faults_of(confirmed, altered("claimed"))
    assert (line, name) == (3, "scenario_notes")
    assert "'claim=batched_online': t.csv:2 has 'offline' for the same run" in text
    unclaimed = altered("claimed", notes={"claim": "none"})
    assert faults_of(confirmed, unclaimed) == []


def test_source_of_several_runs_may_have_several_labels() -> None:
    single = altered("single", {"source_tag": "vendor-a"}, {"tool": None})
    assert faults_of(fields(source_tag="vendor-a"), single) == []


def test_run_under_two_labels_is_not_merged() -> None:
    first = table(of_run(TRACED), name="a.csv")
    second = table(of_run(TRACED, Label.OFFLINE), name="b.csv")
    faults = merge([first, second])
    assert isinstance(faults, list)
    [fault] = faults
    assert str(fault).startswith("b.csv:2:11: measurement_type 'offline': a.csv:2 has 'batched_onl")
    assert isinstance(merge([first, first]), Table)


@pytest.mark.parametrize(
    "note", ["speculative=ngram:3", "kv_cache_dtype=fp8", "prefix_caching=off"]
)
def test_engine_under_another_condition_is_another_measurement(note: str) -> None:
    name, _, value = note.partition("=")
    plain = {"tool": None, "prefix_hit_ratio": "0"}
    tag = {"source_tag": "lab"}
    other = {**tag, "throughput_tokens_per_sec": "588"}
    assert (
        faults_of(altered("online", tag, plain), altered("online", other, plain | {name: value}))
        == []
    )
    [(_, column, _)] = faults_of(altered("online", tag, plain), altered("online", other, plain))
    assert column == "throughput_tokens_per_sec"


@pytest.mark.parametrize("base", NOTES)
def test_row_of_a_real_run_is_accepted(base: str) -> None:
    assert faults_of(altered(base)) == []

"""Rows that contradict other rows of a file, or of several."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.tables.table import Table, merge, row_fields
from tests.orch_sidecar.tools.facts.labelled_rows import altered, faults_of
from tests.orch_sidecar.tools.facts.rows import fact, table

TRACED, FILE = "jaeger:orch-sidecar/exp-1", "a.json sha256:0123456789ab"
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


@pytest.mark.parametrize(
    ("tag", "other", "same"),
    [
        (TRACED, TRACED, True),
        ("otlp:spans.jsonl/exp-1", "otlp:spans.jsonl/exp-1", True),
        (f"{FILE}#2", f"{FILE}#2", True),
        (FILE, FILE.replace("a.json", "b.json"), True),
        (FILE, f"{FILE}#2", False),
        ("vendor-a", "vendor-a", False),
    ],
    ids=["jaeger", "otlp", "one of several", "renamed", "another of several", "no run"],
)
def test_run_under_two_labels_is_a_fault_that_names_the_first_and_is_not_merged(
    tag: str, other: str, same: bool
) -> None:
    first, second = of_run(tag), of_run(other, Label.OFFLINE)
    faults = faults_of(first, second)
    assert [(line, name) for line, name, _ in faults] == [(3, "measurement_type")] * same
    assert all("t.csv:2 has 'batched_online' for the same run" in text for *_, text in faults)
    merged = merge([table(first, name="a.csv"), table(second, name="b.csv")])
    start = "b.csv:2:11: measurement_type 'offline': a.csv:2 has 'batched_onl"
    assert isinstance(merged, Table) or [str(each).startswith(start) for each in merged] == [True]
    assert isinstance(merged, Table) is not same


def test_claim_of_a_run_that_has_another_label_is_a_fault() -> None:
    confirmed = of_run("result.json sha256:0123456789ab", Label.OFFLINE)
    [(line, name, text)] = faults_of(confirmed, altered("claimed"))
    assert (line, name) == (3, "scenario_notes")
    assert "'claim=batched_online': t.csv:2 has 'offline' for the same run" in text
    unclaimed = altered("claimed", notes={"claim": "none"})
    assert faults_of(confirmed, unclaimed) == []

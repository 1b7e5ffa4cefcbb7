"""Whole files: encodings, line ends, headers, and rows that contradict other rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from orch_sidecar.tools.facts.tables.check import check, merge
from orch_sidecar.tools.facts.tables.files import read
from orch_sidecar.tools.facts.tables.row import Label
from orch_sidecar.tools.facts.tables.table import Table, UnreadableFile, row_fields
from tests.orch_sidecar.tools.facts.labelled_rows import altered, faults_of
from tests.orch_sidecar.tools.facts.rows import HEADER, fact, fields, table

LINE = ",".join(fields())
TEXT = f"{HEADER}\n{LINE}\n"
TRACED = "jaeger:orch-sidecar/exp-1"
RUN: dict[str, str | int | float] = {
    "requests": 64,
    "window_s": 13.311,
    "batch_mean": 32,
    "batch_max": 40,
    "preliminary": "yes",
}


@dataclass(frozen=True)
class File:
    """A file, and the first fault, or the error, that is expected; "" where it is accepted."""

    name: str
    content: bytes = TEXT.encode()
    fault: str = ""


def altered_line(old: str, new: str) -> bytes:
    assert old in LINE
    return f"{HEADER}\n{LINE.replace(old, new)}\n".encode()


FILES = [
    File("LF", TEXT.encode()),
    File("CRLF", TEXT.replace("\n", "\r\n").encode()),
    File("CR", TEXT.replace("\n", "\r").encode()),
    File("a byte order mark", f"\ufeff{TEXT}".encode()),
    File("two byte order marks", f"\ufeff\ufeff{TEXT}".encode(), ":1:1: model_id '\\ufeff"),
    File("a byte order mark inside", TEXT.replace("H100", "\ufeffH100").encode(), ":2:5: gpu "),
    File("UTF-16", TEXT.encode("utf-16"), ":1: the text is not UTF-8"),
    File("UTF-16 without a mark", TEXT.encode("utf-16-le"), "U+0000 NULL"),
    File("Latin-1", TEXT.replace("Llama 3.1 8B", "Modèle").encode("latin-1"), "not UTF-8"),
    File("another header", TEXT.replace("precision", "dtype").encode(), ":1:4: precision 'dtype'"),
    File("swapped columns", TEXT.replace("gpu,gpu_count", "gpu_count,gpu").encode(), ":1:5: gpu "),
    File("units", altered_line("2461.67", "2461.67 tok/s"), ":2:10: throughput"),
    File("a decimal comma", altered_line("2461.67", '"2461,67"'), ":2:10: throughput"),
    File("a thousands separator", altered_line("2461.67", '"2,461.67"'), ":2:10: thro"),
    File("other digits", altered_line("2461.67", "\u0662\u0664"), ":2:10: throughput"),
    File("NaN", altered_line("2461.67", "NaN"), ":2:10: throughput"),
    File("infinity", altered_line("2461.67", "inf"), ":2:10: throughput"),
    File("1e400", altered_line("2461.67", "1e400"), ":2:10: throughput"),
    File("400 digits", altered_line("2461.67", "9" * 400), ":2:10: throughput"),
    File("negative", altered_line("2461.67", "-2461.67"), ":2:10: throughput"),
    File("a look-alike label", altered_line("batched_online", "b\u0430tched_online"),
         ":2:11: measurement_type"),
    File("a label in full width", altered_line("batched_online", "\uff42atched_online"),
         ":2:11: measurement_type"),
    File("a label in capitals", altered_line("batched_online", "Batched_Online"),
         ":2:11: measurement_type"),
    File("a label with an invisible end", altered_line("_online", "_online\u200b"),
         ":2:11: measurement_type 'batched_online\\u200b': must not contain U+200B"),
    File("notes in capitals", altered_line("batching=on", "Batching=off"), ":2:12: scen"),
    File("a note twice", altered_line("batching=on", "batching=on; batching=off"),
         "the note 'batching' occurs twice"),
]  # fmt: skip


def of_run(source_tag: str, label: Label = Label.BATCHED_ONLINE) -> tuple[str, ...]:
    """The fields of a row with the notes that each row of a run has."""
    return row_fields(fact(label, source_tag=source_tag, notes=RUN))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_fault_of_a_file_is_reported_at_its_place(file: File, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(file.content)
    try:
        found = [str(fault) for fault in check(read(path))]
    except UnreadableFile as error:
        found = [str(error)]
    if file.fault:
        assert file.fault in found[0]
    else:
        assert found == []


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
    assert "the note claim: t.csv:2 has 'offline' for the same run" in text
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

"""Migrating tables of older files."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.facts.tables.check import check
from orch_sidecar.tools.facts.tables.migrate import Action, Migration, migrate
from orch_sidecar.tools.facts.tables.row import COLUMNS, parse_notes
from orch_sidecar.tools.facts.tables.table import Table, parse, with_records
from tests.orch_sidecar.tools.facts.rows import HEADER, LEGACY, fields, table

LABEL, NOTES = COLUMNS.index("measurement_type"), COLUMNS.index("scenario_notes")
DERIVED = "input_tokens=512; output_tokens=512; batching="


def migrated(**changes: str) -> tuple[Migration, str, str]:
    """Migrates a table of one row; returns the migration, its label and its notes."""
    found = migrate(table(fields(**changes)))
    row = found.table.rows[0].fields
    return found, row[LABEL], row[NOTES]


@pytest.mark.parametrize("label", ["aggregate", "per_user_stream"])
@pytest.mark.parametrize("batch", ["1", "32"])
def test_legacy_label_is_to_be_confirmed_whatever_the_batch(label: str, batch: str) -> None:
    text = "64 clients; warm"
    found, now, notes = migrated(measurement_type=label, batch=batch, scenario_notes=text)
    assert now == "to_be_confirmed"
    assert notes == f"{DERIVED}unknown; legacy_label={label}; legacy_notes=64 clients, warm"
    assert [step.action for step in found.steps] == [Action.RELABELLED]
    assert check(found.table) == []


def test_legacy_row_without_notes_has_no_legacy_notes() -> None:
    _, _, notes = migrated(measurement_type="aggregate", scenario_notes="")
    assert notes == f"{DERIVED}unknown; legacy_label=aggregate"


def test_notes_of_a_legacy_row_are_kept_as_text_and_its_batching_is_unknown() -> None:
    text = f"{DERIVED}on; clients=64"
    _, _, notes = migrated(measurement_type="aggregate", scenario_notes=text)
    assert parse_notes(notes)["batching"] == "unknown"
    assert parse_notes(notes)["legacy_notes"] == text.replace(";", ",")


@pytest.mark.parametrize(
    ("label", "batch", "batching"),
    [
        ("single_stream", "1", "off"),
        ("batched_online", "32", "on"),
        ("offline", "256", "on"),
        ("to_be_confirmed", "32", "unknown"),
    ],
)
def test_known_label_gets_the_notes_that_follow_and_keeps_its_text(
    label: str, batch: str, batching: str
) -> None:
    found, now, notes = migrated(measurement_type=label, batch=batch, scenario_notes="one\n user")
    assert now == label
    assert notes == f"{DERIVED}{batching}; legacy_notes=one user"
    assert [step.action for step in found.steps] == [Action.NOTES_ADDED]
    assert check(found.table) == []


def test_existing_notes_follow_the_required_ones() -> None:
    _, _, notes = migrated(scenario_notes="clients=64; batching=on; ttft_p50_ms=18")
    assert notes == f"{DERIVED}on; clients=64; ttft_p50_ms=18"


@pytest.mark.parametrize(
    "text",
    [
        "input_tokens=512 output_tokens=512 batching={}",
        "input_tokens=512, output_tokens=512, batching={}",
        "input_tokens=512;output_tokens=512 ; batching={};",
        " input_tokens=512,output_tokens=512; batching={}",
        "batching={}  output_tokens=512\ninput_tokens=512",
    ],
)
@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("single_stream", ("off", "false", "no", "FALSE")),
        ("offline", ("on", "true", "yes", "True")),
    ],
)
def test_notes_may_have_other_separators_and_words(
    text: str, label: str, words: tuple[str, ...]
) -> None:
    for word in words:
        batch = "1" if label == "single_stream" else "32"
        found, _, notes = migrated(
            measurement_type=label, batch=batch, scenario_notes=text.format(word)
        )
        assert notes == f"{DERIVED}{words[0]}"
        assert [step.action for step in found.steps] == [Action.NOTES_ADDED]
        assert check(found.table) == []


def test_value_may_contain_spaces_and_commas() -> None:
    text = "tool=my bench, v2, clients=64 batching=true"
    assert migrated(scenario_notes=text)[2] == f"{DERIVED}on; tool=my bench, v2; clients=64"


def test_legacy_row_with_notes_in_spaces_is_relabelled() -> None:
    text = "input_tokens=512 output_tokens=512 batching=false"
    _, label, notes = migrated(measurement_type="aggregate", scenario_notes=text)
    assert label == "to_be_confirmed"
    assert notes == f"{DERIVED}unknown; legacy_label=aggregate; legacy_notes={text}"


@pytest.mark.parametrize(
    "text", ["input_tokens=512|output_tokens=512|batching=on", "batching=on, batching=off"]
)
def test_report_of_notes_that_cannot_be_parsed_names_the_separators(text: str) -> None:
    before = table(fields(scenario_notes=text))
    found = migrate(before)
    assert found.table.text == before.text
    [step] = found.steps
    assert str(step).endswith(
        "; notes are read as name=value, separated by semicolons, commas or spaces"
    )


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"input_tokens": "~45000", "measurement_type": "aggregate"}, "input_tokens '~45000'"),
        ({"batch": "32.0", "measurement_type": "aggregate"}, "batch '32.0'"),
        ({"gpu": "", "measurement_type": "per_user_stream"}, "gpu ''"),
        ({"measurement_type": "Aggregate"}, "measurement_type 'Aggregate'"),
        ({"measurement_type": "multi_stream"}, "measurement_type 'multi_stream'"),
        ({"measurement_type": "single_stream"}, "batch '32': must be 1"),
        ({"batch": "1"}, "batch '1': must be above 1"),
        ({"scenario_notes": "input_tokens=64"}, "'input_tokens=64': must equal the column"),
        ({"scenario_notes": "warm; input_tokens=64"}, "'input_tokens=64': must equal the column"),
        ({"scenario_notes": "warm; batching=off"}, "'batching=off': must be on"),
        ({"scenario_notes": "batching=on\nhere"}, "'batching=on here': must be on"),
        (
            {"measurement_type": "aggregate", "scenario_notes": "warm; output_tokens=9"},
            "'output_tokens=9': must equal the column",
        ),
    ],
)
def test_row_with_another_fault_is_unchanged_and_reported(
    changes: dict[str, str], fault: str
) -> None:
    before = table(fields(**{"scenario_notes": "one user", **changes}))
    found = migrate(before)
    assert found.table.text == before.text
    [step] = found.steps
    assert step.action is Action.UNCHANGED
    assert fault in str(step)
    assert str(step).startswith("t.csv:2: unchanged: ")


def test_ragged_and_misquoted_rows_are_unchanged_and_reported() -> None:
    ragged = "a,b,c"
    quoted = ",".join(fields(measurement_type="aggregate", scenario_notes='7" rack'))
    before = parse("t.csv", f"{HEADER}\n{ragged}\n{quoted}\n")
    found = migrate(before)
    assert found.table.text == before.text
    assert [step.action for step in found.steps] == [Action.UNCHANGED, Action.UNCHANGED]


def test_valid_rows_keep_their_bytes_and_need_no_step() -> None:
    before = parse("t.csv", f"{HEADER}\r\n{','.join(map(quoted, fields()))}\r\n")
    found = migrate(before)
    assert found.table.text == before.text
    assert found.steps == ()


def quoted(value: str) -> str:
    return f'"{value}"'


def test_table_under_another_header_is_unchanged() -> None:
    before = parse("t.csv", "model,label\nm,aggregate\n")
    found = migrate(before)
    assert (found.table, found.steps) == (before, ())


def test_migrated_row_keeps_its_figures_as_they_were_written_and_its_line_end() -> None:
    line = ",".join(
        fields(throughput_tokens_per_sec="92.720", measurement_type="offline", scenario_notes="x")
    )
    found = migrate(parse("t.csv", f"\ufeff{HEADER}\r\n{line}"))
    new = line.replace(",x,", f",{DERIVED}on; legacy_notes=x,")
    assert found.table.text == f"\ufeff{HEADER}\r\n{new}"


def test_legacy_file_keeps_all_rows_and_only_unknown_values_stay_faults() -> None:
    before = parse("legacy.csv", LEGACY.read_text(encoding="utf-8"))
    found = migrate(before)
    counts = Counter(step.action for step in found.steps)
    assert counts == {Action.RELABELLED: 15, Action.NOTES_ADDED: 6, Action.UNCHANGED: 3}
    assert [step.line for step in found.steps if step.action is Action.UNCHANGED] == [10, 15, 20]
    for old, new in zip(before.rows, found.table.rows, strict=True):
        if old.line in (10, 15, 20):
            assert old.raw == new.raw
        else:
            kept = [index for index in range(len(COLUMNS)) if index not in (LABEL, NOTES)]
            assert [old.fields[index] for index in kept] == [new.fields[index] for index in kept]
            assert parse_notes(new.fields[NOTES]).get("legacy_notes", "") == old.fields[
                NOTES
            ].replace(";", ",")
    assert [(fault.line, fault.name) for fault in check(found.table)] == [
        (10, "input_tokens"),
        (10, "measurement_type"),
        (10, "scenario_notes"),
        (15, "output_tokens"),
        (20, "source_tag"),
    ]


def test_migrating_once_more_changes_nothing() -> None:
    once = migrate(parse("legacy.csv", LEGACY.read_text(encoding="utf-8"))).table
    assert migrate(once).table == once


ODD = st.sampled_from(
    ["", "aggregate", "single_stream", "offline", "x", "1", "32", "512", "~45000"]
)
ODD_NOTES = st.text(st.sampled_from('ab=;, \n\r"1'), max_size=20) | st.sampled_from(
    ["batching=off", "batching=on; x", "input_tokens=512", "a=1; input_tokens=2\n3;"]
)


def lines_at_fault(table: Table) -> set[int]:
    """Faults of single rows, not those that compare two rows."""
    of_two = ("the row repeats", "for the same measurement")
    faults = [fault for fault in check(table) if not any(each in fault.rule for each in of_two)]
    return {fault.line for fault in faults}


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "measurement_type": ODD,
                "batch": ODD,
                "gpu": ODD,
                "input_tokens": ODD,
                "scenario_notes": ODD_NOTES,
            },
        ),
        max_size=4,
    ),
    st.lists(st.text(max_size=4), max_size=14),
)
def test_migration_loses_no_row_and_makes_no_fault(
    rows: list[dict[str, str]], ragged: list[str]
) -> None:
    before = with_records(table(*(fields(**row) for row in rows)), [ragged] if ragged else [])
    found = migrate(before)
    assert len(found.table.records) == len(before.records)
    # One step per invalid row; rows that became equal by the migration repeat each other.
    faulty = lines_at_fault(before)
    assert {step.line for step in found.steps} == faulty
    left = {step.line for step in found.steps if step.action is Action.UNCHANGED}
    for old, new in zip(before.records, found.table.records, strict=True):
        if old.line in left or old.line not in faulty:
            assert new.raw == old.raw
    still = lines_at_fault(found.table)
    lines = {
        old.line: new.line for old, new in zip(before.records, found.table.records, strict=True)
    }
    assert still == {lines[line] for line in left}

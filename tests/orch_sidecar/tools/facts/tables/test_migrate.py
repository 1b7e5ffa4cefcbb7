"""Migrating the table of an older file."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.tables.row import COLUMNS, parse_notes
from orch_sidecar.tools.facts.tables.table import check, migrate, parse
from tests.orch_sidecar.tools.facts.rows import LEGACY, fields, places, table

LABEL, NOTES = COLUMNS.index("measurement_type"), COLUMNS.index("scenario_notes")
DERIVED = "input_tokens=512; output_tokens=512; batching="


@pytest.mark.parametrize(
    ("label", "batch", "text", "now", "notes"),
    [
        ("aggregate", "1", "64 clients; warm", "to_be_confirmed",
         "unknown; legacy_label=aggregate; legacy_notes=64 clients, warm"),
        ("per_user_stream", "32", "", "to_be_confirmed", "unknown; legacy_label=per_user_stream"),
        ("single_stream", "1", "one\n user", "single_stream", "off; legacy_notes=one user"),
        ("batched_online", "32", "", "batched_online", "on"),
        ("offline", "256", "x", "offline", "on; legacy_notes=x"),
        ("to_be_confirmed", "32", "x", "to_be_confirmed", "unknown; legacy_notes=x"),
    ],
)  # fmt: skip
def test_row_gets_the_label_and_notes_that_follow_from_it(
    label: str, batch: str, text: str, now: str, notes: str
) -> None:
    before = fields(measurement_type=label, batch=batch, scenario_notes=text)
    found, steps = migrate(table(before))
    after = fields(measurement_type=now, batch=batch, scenario_notes=f"{DERIVED}{notes}")
    assert (found.rows[0].fields, check(found)) == (after, [])
    assert steps == [f"t.csv:2: migrated: {now}, {DERIVED}{notes}"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"input_tokens": "~45000", "measurement_type": "aggregate"}, "input_tokens '~45000'"),
        ({"batch": "32.0", "measurement_type": "aggregate"}, "batch '32.0'"),
        ({"gpu": "", "measurement_type": "per_user_stream"}, "gpu ''"),
        ({"measurement_type": "Aggregate"}, "measurement_type 'Aggregate'"),
        ({"measurement_type": "single_stream"}, "batch '32': must be 1"),
        ({"batch": "1"}, "batch '1': must be above 1"),
        # It states something already, which is not to be guessed.
        ({"scenario_notes": "warm; input_tokens=64"}, "'warm' is not key=value"),
        ({"scenario_notes": "batching=off", "measurement_type": "aggregate"}, "aggregate"),
    ],
)
def test_row_with_another_fault_is_unchanged_and_reported(
    changes: dict[str, str], fault: str
) -> None:
    row = fields(**{"scenario_notes": "one user", **changes})
    found, [step] = migrate(table(row))
    assert found.rows[0].fields == row
    assert step.startswith("t.csv:2: unchanged: ")
    assert fault in step


@pytest.mark.parametrize("missing", COLUMNS)
def test_ragged_row_is_unchanged_wherever_its_fault_is(missing: str) -> None:
    values = dict(zip(COLUMNS, fields(measurement_type="aggregate"), strict=True))
    row = tuple(value for name, value in values.items() if name != missing)
    for ragged in (row, (*values.values(), "x"), ()):
        found, [step] = migrate(table(ragged))
        assert found.rows[0].fields == ragged
        assert step.startswith("t.csv:2: unchanged: ")


def test_valid_rows_and_other_headers_need_no_step() -> None:
    assert migrate(table(fields())) == (table(fields()), [])
    other = parse("t.csv", "model,label\nm,aggregate\n")
    assert migrate(other) == (other, [])


def test_legacy_file_keeps_all_rows_and_only_unknown_values_stay_faults() -> None:
    before = parse("legacy.csv", LEGACY.read_text(encoding="utf-8"))
    found, steps = migrate(before)
    assert [": migrated: " in step for step in steps].count(True) == 21
    unchanged = (10, 15, 20)
    for old, new in zip(before.rows, found.rows, strict=True):
        if old.line in unchanged:
            assert old == new
        else:
            kept = [index for index in range(len(COLUMNS)) if index not in (LABEL, NOTES)]
            assert [old.fields[index] for index in kept] == [new.fields[index] for index in kept]
            text = parse_notes(new.fields[NOTES]).get("legacy_notes", "")
            assert text == old.fields[NOTES].replace(";", ",")
    assert places(check(found)) == [
        (10, "input_tokens"),
        (10, "measurement_type"),
        (10, "scenario_notes"),
        (15, "source_tag"),
        (20, "(no column)"),
    ]
    assert migrate(found)[0] == found

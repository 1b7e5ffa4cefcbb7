"""Tables as text, their faults and where these are, and the rows of older ones."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.facts.tables.row import COLUMNS, Label, parse_notes
from orch_sidecar.tools.facts.tables.table import (
    Table,
    check,
    header_fault,
    merge,
    migrate,
    parse,
    parse_row,
    record_text,
    row_fields,
    valid_rows,
    with_records,
)
from tests.orch_sidecar.tools.facts.rows import HEADER, LEGACY, SOUND, fact, fields, places, table

# Any text, in which the characters of CSV are frequent.
ANY_TEXT = st.text(
    st.one_of(st.sampled_from('",\r\n\ufeff \x00;'), st.characters(codec="utf-8")), max_size=60
)
RECORDS = st.lists(st.lists(ANY_TEXT, min_size=1, max_size=15), min_size=1, max_size=5)
LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])
LABEL, NOTES = COLUMNS.index("measurement_type"), COLUMNS.index("scenario_notes")
DERIVED = "input_tokens=512; output_tokens=512; batching="


@given(RECORDS, LINE_ENDS, st.booleans(), st.booleans())
def test_any_records_are_read_as_they_were_written(
    rows: list[list[str]], line_end: str, marked: bool, ended: bool
) -> None:
    text = "".join(record_text(row, line_end) for row in rows)
    if not ended:
        text = text.removesuffix(line_end)
    # A byte order mark belongs to the file, not to its first field.
    mark = "\ufeff" if marked or text.startswith("\ufeff") else ""
    found = parse("t.csv", mark + text)
    assert [list(record.fields) for record in found.records] == rows
    assert found.text == mark + text


@given(RECORDS)
def test_the_standard_reader_agrees(rows: list[list[str]]) -> None:
    text = "".join(record_text(row, "\r\n") for row in rows)
    assert list(csv.reader(io.StringIO(text, newline=""), strict=True)) == rows


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_added_record_ends_as_the_files_lines_do(line_end: str, mark: str) -> None:
    text = mark + HEADER + line_end + ",".join(fields())
    added = with_records(parse("t.csv", text), [fields(source_tag="a,b")])
    last = ",".join(fields(source_tag='"a,b"'))
    assert added.text == text + line_end + last + line_end
    assert [record.line for record in added.records] == [1, 2, 3]


def test_quoted_field_with_line_breaks_moves_the_lines_below_it() -> None:
    found = parse("t.csv", 'a,"b\r\nc\nd"\ne,f\n\ng')
    assert [(each.line, each.fields) for each in found.records] == [
        (1, ("a", "b\r\nc\nd")),
        (4, ("e", "f")),
        (5, ()),
        (6, ("g",)),
    ]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('a,b\nc,"b"c,d\n', "t.csv:2: invalid CSV: ',' expected after '\"'"),
        ('a,b"c,d\n', "t.csv:1:2: invalid CSV: fields are separated by commas, and a field that"),
        ('a, "b",c\n', "t.csv:1:2: invalid CSV: field"),
        ('a\n\n"b\nc,d', "t.csv:3: invalid CSV: unexpected end of data"),
        (f"a\n{'x' * (csv.field_size_limit() + 1)}\n", "t.csv:2: invalid CSV: field larger than"),
    ],
)
def test_text_that_is_no_csv_is_reported_with_its_line(text: str, rule: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(rule)}"):
        parse("t.csv", text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (92.72, "92.72"),
        (92.0, "92"),
        (2461.666666, "2461.67"),
        (0.000012345678, "0.0000123457"),
        (1e-9, "0.000000001"),
        (12345678.9, "12345700"),
        (1e15, "1000000000000000"),
        (5, "5"),
    ],
)
def test_throughput_has_six_digits_and_no_exponent(value: float, text: str) -> None:
    assert row_fields(fact(throughput_tokens_per_sec=value))[9] == text


def test_valid_rows_have_no_fault() -> None:
    rows = [fact(label) for label in (Label.SINGLE_STREAM, Label.BATCHED_ONLINE, Label.OFFLINE)]
    found = with_records(Table("t.csv"), [COLUMNS, *(row_fields(row) for row in rows)])
    assert check(found) == []
    assert [placed.row for placed in valid_rows(found)] == rows
    assert [placed.place for placed in valid_rows(found)] == ["t.csv:2", "t.csv:3", "t.csv:4"]


@pytest.mark.parametrize(
    ("value", "shown"), [("~45000", "~45000"), ("9" * 1000, f"{'9' * 59}…")], ids=["short", "long"]
)
def test_fault_names_file_line_column_value_and_rule(value: str, shown: str) -> None:
    [fault] = check(table(fields(), fields(batch=value), name="dir/tps_model_gpu.csv"))
    assert str(fault) == (
        f"dir/tps_model_gpu.csv:3:7: batch '{shown}': "
        "must be a whole number in plain digits, at least 1"
    )


@pytest.mark.parametrize(
    ("header", "column", "value"),
    [
        ("", 1, ""),
        (HEADER.removesuffix(",source_tag"), 13, ""),
        (f"{HEADER},extra", 14, "extra"),
        (HEADER.replace("gpu,gpu_count", "gpu_count,gpu"), 5, "gpu_count"),
        (HEADER.replace("batch", "Batch"), 7, "Batch"),
        (HEADER.replace("gpu,", " gpu,"), 5, " gpu"),
        (",".join(SOUND.values()), 1, SOUND["model_id"]),
    ],
)
def test_other_header_is_one_fault_and_rows_are_not_checked(
    header: str, column: int, value: str
) -> None:
    found = parse("t.csv", f"{header}\n1,2,3\n" if header else "")
    [fault] = check(found)
    assert str(fault).startswith(f"t.csv:1:{column}: ")
    assert f" {value!r}: " in fault.text
    assert HEADER in fault.rule
    assert valid_rows(found) == []


def test_header_after_a_byte_order_mark_in_quotes_and_crlf_is_the_header() -> None:
    quoted = ",".join(f'"{name}"' for name in COLUMNS)
    assert header_fault(parse("t.csv", f"\ufeff{quoted}\r\n")) is None


class TestRaggedRow:
    def test_missing_field_is_one_fault_at_the_end(self) -> None:
        short = tuple(SOUND[name] for name in COLUMNS if name != "precision")
        [fault] = check(table(fields(), short, fields(source_tag="other")))
        assert places([fault]) == [(3, "source_tag")]
        assert fault.text.startswith("source_tag '': the row has 12 fields, not 13")

    def test_empty_line_is_a_fault(self) -> None:
        assert places(check(parse("t.csv", f"{HEADER}\n\n"))) == [(2, "model_id")]

    @given(st.lists(st.text(max_size=8), max_size=16).filter(lambda row: len(row) != len(COLUMNS)))
    def test_any_other_number_of_fields_is_one_fault(self, row: list[str]) -> None:
        found = table(fields())
        added = with_records(found, [row] if row else [])
        assert len(check(added)) == (1 if row else 0)


def test_identical_row_is_a_fault_that_names_the_first() -> None:
    again = fields(throughput_tokens_per_sec="2461.670")
    faults = check(table(fields(), fields(source_tag="run-2"), fields(), again))
    assert [(fault.record.line, fault.rule) for fault in faults] == [
        (4, "the row repeats line 2"),
        (5, "the row repeats line 2"),
    ]


def test_each_fault_of_a_row_is_reported_once_in_the_order_of_columns() -> None:
    bad = fields(gpu="", batch="1", output_tokens="~64", measurement_type="online")
    expected = [(2, "gpu"), (2, "output_tokens"), (2, "measurement_type")]
    assert places(check(table(bad))) == expected


@given(
    st.sampled_from([Label.BATCHED_ONLINE, Label.OFFLINE]),
    st.integers(2, 10**15 - 1),
    st.integers(0, 10**15 - 1),
    st.integers(1, 10**15 - 1),
    st.floats(1e-9, 1e14),
)
def test_valid_row_is_written_and_read_unchanged(
    label: Label, batch: int, input_tokens: int, output_tokens: int, throughput: float
) -> None:
    row = fact(
        label,
        batch=batch,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        throughput_tokens_per_sec=float(f"{throughput:.6g}"),
    )
    found = with_records(Table("t.csv"), [COLUMNS, row_fields(row)])
    assert check(found) == []
    assert parse_row(found.rows[0]) == row


def test_two_figures_of_one_measurement_are_a_fault_of_the_second() -> None:
    other = fields(throughput_tokens_per_sec="99.5")
    [fault] = check(table(fields(), fields(source_tag="run-2"), other))
    assert str(fault) == (
        "t.csv:4:10: throughput_tokens_per_sec '99.5': t.csv:2:10 has '2461.67' for the same "
        "measurement (an identical key)"
    )
    [fault] = check(table(fields(), fields(model_name="Llama")))
    assert places([fault]) == [(3, "model_name")]


class TestMerge:
    def test_rows_follow_those_of_the_first_file_whose_bytes_stay(self) -> None:
        quoted = ",".join(f'"{value}"' for value in fields(throughput_tokens_per_sec="92.720"))
        text = f"\ufeff{HEADER}\r\n{quoted}"
        again, new = fields(throughput_tokens_per_sec="92.72"), fields(source_tag="b")
        found = merge([parse("a.csv", text), table(again, new), table(new, fields(source_tag="a"))])
        assert isinstance(found, Table)
        assert found.text.startswith(f"{text}\r\n")
        assert [record.fields[-1] for record in found.rows] == ["run-1", "b", "a"]
        assert check(found) == []

    @pytest.mark.parametrize(
        ("other", "expected"),
        [
            ({"throughput_tokens_per_sec": "2500"}, "b.csv:2:10: throughput_tokens_per_sec '2500': "
             "a.csv:3:10 has '2461.67' for the same measurement (an identical key)"),
            ({"scenario_notes": f"{DERIVED}on; clients=64"}, "b.csv:2:12: scenario_notes "),
            ({"batch": "x"}, "b.csv:2:7: batch 'x': must be a whole number"),
        ],
    )  # fmt: skip
    def test_contradiction_or_fault_is_returned_instead(
        self, other: dict[str, str], expected: str
    ) -> None:
        first = table(fields(source_tag="a"), fields(), name="a.csv")
        found = merge([first, table(fields(**other), name="b.csv")])
        assert isinstance(found, list)
        [fault] = found
        assert str(fault).startswith(expected)


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
        ({"input_tokens": "12;3", "measurement_type": "aggregate"}, "input_tokens '12;3'"),
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

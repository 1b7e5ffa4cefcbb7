"""Tables as text: locations and bytes."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.facts.tables.row import COLUMNS
from orch_sidecar.tools.facts.tables.table import (
    Table,
    parse,
    record_text,
    row_fields,
    with_records,
)
from tests.orch_sidecar.tools.facts.rows import HEADER, fact, fields

# Any text, in which the characters of CSV are frequent.
ANY_TEXT = st.text(
    st.one_of(st.sampled_from('",\r\n\ufeff \x00;'), st.characters(codec="utf-8")), max_size=60
)
ANY_FIELDS = st.lists(ANY_TEXT, min_size=1, max_size=15)
LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])


@given(st.lists(ANY_FIELDS, min_size=1, max_size=5), LINE_ENDS, st.booleans(), st.booleans())
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


@given(st.lists(ANY_FIELDS, min_size=1, max_size=5))
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
    ],
)
def test_misplaced_quote_is_reported_with_its_line(text: str, rule: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(rule)}"):
        parse("t.csv", text)


def test_field_above_the_csv_limit_is_rejected_with_its_line() -> None:
    with pytest.raises(ValueError, match=r"t\.csv:2: invalid CSV: field larger than"):
        parse("t.csv", f"{HEADER}\n{'x' * (csv.field_size_limit() + 1)}\n")


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


def test_fact_becomes_the_columns_in_their_order() -> None:
    assert row_fields(fact()) == fields()
    assert with_records(Table("t.csv"), [COLUMNS, row_fields(fact())]).text.count("\n") == 2

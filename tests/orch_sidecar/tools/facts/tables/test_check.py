"""The faults of a table, and where they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.facts.tables.row import COLUMNS, Label
from orch_sidecar.tools.facts.tables.table import (
    Table,
    check,
    header_fault,
    merge,
    parse,
    parse_row,
    row_fields,
    valid_rows,
    with_records,
)
from tests.orch_sidecar.tools.facts.rows import HEADER, SOUND, fact, fields, places, table


def notes(input_tokens: int = 512, output_tokens: int = 512, batching: str = "on") -> str:
    return f"input_tokens={input_tokens}; output_tokens={output_tokens}; batching={batching}"


def test_valid_rows_have_no_fault() -> None:
    rows = [fact(label) for label in (Label.SINGLE_STREAM, Label.BATCHED_ONLINE, Label.OFFLINE)]
    found = with_records(Table("t.csv"), [COLUMNS, *(row_fields(row) for row in rows)])
    assert check(found) == []
    assert [placed.row for placed in valid_rows(found)] == rows
    assert [placed.place for placed in valid_rows(found)] == ["t.csv:2", "t.csv:3", "t.csv:4"]


def test_fault_names_file_line_column_value_and_rule() -> None:
    [fault] = check(table(fields(), fields(batch="~45000"), name="dir/tps_model_gpu.csv"))
    assert str(fault) == (
        "dir/tps_model_gpu.csv:3:7: batch '~45000': "
        "must be a whole number in plain digits, at least 1"
    )


def test_long_value_is_shortened() -> None:
    [fault] = check(table(fields(batch="9" * 1000)))
    assert len(str(fault)) < 200
    assert "999…'" in str(fault)


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
    assert places(check(table(bad))) == [
        (2, "gpu"),
        (2, "output_tokens"),
        (2, "measurement_type"),
    ]


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
            ({"scenario_notes": f"{notes()}; clients=64"}, "b.csv:2:12: scenario_notes "),
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

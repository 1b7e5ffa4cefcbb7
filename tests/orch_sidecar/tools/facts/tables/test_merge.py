"""Merging several tables into one."""

from __future__ import annotations

from orch_sidecar.tools.facts.tables.check import Fault, check
from orch_sidecar.tools.facts.tables.merge import Merged, merge
from orch_sidecar.tools.facts.tables.table import Table, parse
from tests.orch_sidecar.tools.facts.rows import HEADER, fields, table


def merged(*tables: Table) -> Merged:
    found = merge(tables)
    assert isinstance(found, Merged), [str(fault) for fault in found]
    return found


def refused(*tables: Table) -> list[Fault]:
    found = merge(tables)
    assert isinstance(found, list)
    return found


def sources(found: Merged) -> list[str]:
    return [record.fields[-1] for record in found.table.rows]


def test_rows_keep_the_order_of_the_files() -> None:
    first = table(fields(source_tag="2"), fields(source_tag="1"))
    second = table(fields(source_tag="3"), fields(source_tag="0"))
    assert sources(merged(first, second)) == ["2", "1", "3", "0"]
    assert sources(merged(second, first)) == ["3", "0", "2", "1"]


def test_one_file_is_written_as_it_is() -> None:
    text = f"\ufeff{HEADER}\r\n{','.join(fields(throughput_tokens_per_sec='92.720'))}\r\n"
    found = merged(parse("a.csv", text))
    assert (found.table.text, found.repeated) == (text, 0)


def test_rows_take_the_line_end_of_the_first_file_and_keep_the_rest_of_their_bytes() -> None:
    line = ",".join(f'"{value}"' for value in fields(source_tag="b"))
    found = merged(
        parse("a.csv", f"{HEADER}\n{','.join(fields())}"), parse("b.csv", f"{HEADER}\r\n{line}\r\n")
    )
    assert found.table.text == f"{HEADER}\n{','.join(fields())}\n{line}\n"
    assert check(found.table) == []


def test_repeated_row_is_written_once() -> None:
    again = fields(throughput_tokens_per_sec="2461.670")
    found = merged(table(fields()), table(again, fields(source_tag="b")))
    assert sources(found) == ["run-1", "b"]
    assert found.repeated == 1
    assert found.table.rows[0].fields == fields()


def test_different_figures_for_one_measurement_conflict_with_both_locations() -> None:
    a = table(fields(source_tag="a"), fields(), name="a.csv")
    b = table(fields(throughput_tokens_per_sec="2500"), name="b.csv")
    [fault] = refused(a, b)
    assert str(fault) == (
        "b.csv:2:10: throughput_tokens_per_sec '2500': "
        "a.csv:3:10 has '2461.67' for the same measurement (an identical key)"
    )


def test_different_notes_for_one_measurement_conflict_too() -> None:
    notes = "input_tokens=512; output_tokens=512; batching=on; clients=64"
    [fault] = refused(table(fields()), table(fields(scenario_notes=notes), name="b.csv"))
    assert (fault.file, fault.name, fault.value) == ("b.csv", "scenario_notes", notes)


def test_rows_of_two_sources_are_both_kept() -> None:
    found = merged(table(fields(), fields(source_tag="b", throughput_tokens_per_sec="2500")))
    assert len(found.table.rows) == 2


def test_fault_in_any_file_rejects_the_merge() -> None:
    faults = refused(table(fields()), table(fields(batch="x"), name="b.csv"), parse("c.csv", ""))
    assert [(fault.file, fault.line) for fault in faults] == [("b.csv", 2), ("c.csv", 1)]

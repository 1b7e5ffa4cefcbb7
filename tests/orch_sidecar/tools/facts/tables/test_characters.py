"""Characters that no cell may contain, and cells that a spreadsheet would execute."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.tables.characters import formula_rule, violated_rule
from orch_sidecar.tools.facts.tables.check import check, header_fault, invalid_fields
from orch_sidecar.tools.facts.tables.row import COLUMNS
from orch_sidecar.tools.facts.tables.table import parse
from tests.orch_sidecar.tools.facts.rows import HEADER, SOUND, fact, fields, table

INVISIBLE = {
    "\0": "U+0000 NULL",
    "\x1b": "U+001B ESCAPE",
    "\t": "U+0009 CHARACTER TABULATION",
    "\x7f": "U+007F a character without a name",
    "\x85": "U+0085 a character without a name",
    "\xa0": "U+00A0 NO-BREAK SPACE",
    "\xad": "U+00AD SOFT HYPHEN",
    "\u200b": "U+200B ZERO WIDTH SPACE",
    "\u200d": "U+200D ZERO WIDTH JOINER",
    "\u202e": "U+202E RIGHT-TO-LEFT OVERRIDE",
    "\u2066": "U+2066 LEFT-TO-RIGHT ISOLATE",
    "\u2028": "U+2028 LINE SEPARATOR",
    "\u2060": "U+2060 WORD JOINER",
    "\u3164": "U+3164 HANGUL FILLER",
    "\ufe0f": "U+FE0F VARIATION SELECTOR-16",
    "\ufeff": "U+FEFF ZERO WIDTH NO-BREAK SPACE",
    "\U000e0041": "U+E0041 TAG LATIN CAPITAL LETTER A",
    "\ue000": "U+E000 a character without a name",
}
TEXTS = ("model_id", "model_name", "engine", "precision", "gpu", "source_tag")
FORMULAS = (
    *("=1+1", "+1", "-foo", "@sum", "\uff1dcmd", "\uff0b1", "\uff0d1", "\uff20x"),
    *("'=1", '"=1', "' \"-1", "a;=1", "a; '@b"),
)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("character", INVISIBLE)
def test_invisible_character_is_a_fault_in_every_column(column: str, character: str) -> None:
    value = SOUND[column]
    cell = f"{value[:1]}{character}{value[1:]}"
    [fault] = check(table(fields(), fields(**{column: cell}), fields(source_tag="run-2")))
    assert str(fault).startswith(f"t.csv:3:{COLUMNS.index(column) + 1}: {column} ")
    assert f"must not contain {INVISIBLE[character]} (character 2 of the cell)" in fault.rule
    assert character.isprintable() or character not in str(fault)


@pytest.mark.parametrize("character", INVISIBLE)
def test_invisible_character_is_a_fault_of_the_header(character: str) -> None:
    fault = header_fault(parse("t.csv", HEADER.replace("gpu_count", f"gpu{character}_count")))
    assert fault is not None
    assert (fault.line, fault.column) == (1, 6)
    assert INVISIBLE[character] in fault.rule


@pytest.mark.parametrize("column", TEXTS)
@pytest.mark.parametrize("cell", FORMULAS)
def test_cell_that_a_spreadsheet_executes_is_a_fault(column: str, cell: str) -> None:
    [fault] = check(table(fields(**{column: cell})))
    assert (fault.line, fault.name) == (2, column)
    assert "a spreadsheet executes it as a formula" in fault.rule


@pytest.mark.parametrize(
    "column", [name for name in COLUMNS if name not in (*TEXTS, "measurement_type")]
)
@pytest.mark.parametrize("cell", FORMULAS)
def test_cell_of_another_form_is_no_formula_either(column: str, cell: str) -> None:
    [fault] = check(table(fields(**{column: cell})))
    assert (fault.line, fault.name) == (2, column)


def test_fault_names_the_character_of_a_formula_and_its_place() -> None:
    assert formula_rule("-foo") == (
        "must not begin with U+002D HYPHEN-MINUS (character 1 of the cell): "
        "a spreadsheet executes it as a formula"
    )
    assert formula_rule('a; "=1') == (
        "must not have after a semicolon U+003D EQUALS SIGN (character 5 of the cell): "
        "a spreadsheet executes it as a formula"
    )


@pytest.mark.parametrize(
    "value",
    ["meta-llama/Llama-3.1-8B", "CPU (AMD EPYC™, 2.6 GHz)", "a=b", "Größe", "模型", "a\nb"],
)
def test_visible_text_has_no_fault(value: str) -> None:
    assert violated_rule(value) is None
    assert formula_rule(value) is None


@pytest.mark.parametrize("cell", ["-foo", "=cmd", "a\u200bb", "a\0b", "a\u202eb"])
def test_row_to_be_written_has_the_same_faults(cell: str) -> None:
    [fault] = invalid_fields(fact(model_name=cell))
    assert (fault.name, fault.value) == ("model_name", cell)

"""Forms of values, their rounding, characters that no cell may contain, and cells that execute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.facts.tables.notes import (
    TEXT,
    THROUGHPUT,
    Form,
    number,
    one_of,
    whole,
)
from orch_sidecar.tools.facts.tables.row import COLUMNS, format_notes, formula_rule, invisible_rule
from orch_sidecar.tools.facts.tables.table import check, check_row, header_fault, parse
from tests.orch_sidecar.tools.facts.rows import HEADER, SOUND, fact, fields, places, table

INVISIBLE = {
    "\0": "U+0000 NULL",
    "\x1b": "U+001B ESCAPE",
    "\t": "U+0009 CHARACTER TABULATION",
    "\x7f": "U+007F a character without a name",
    "\xa0": "U+00A0 NO-BREAK SPACE",
    "\xad": "U+00AD SOFT HYPHEN",
    "\u200b": "U+200B ZERO WIDTH SPACE",
    "\u202e": "U+202E RIGHT-TO-LEFT OVERRIDE",
    "\u2028": "U+2028 LINE SEPARATOR",
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
NO_COUNTS = (
    "~45000",
    "32.0",
    "1e3",
    "1_000",
    " 5",
    "5 ",
    "+5",
    "-1",
    "007",
    "",
    "\u0663",
    "1" * 16,
)
NO_THROUGHPUTS = (
    *("0", "0.0", "-1", "+1", "1e3", "1_000", " 92.72", "92,72", ".5", "5.", "nan", "inf", ""),
    *("Infinity", "~90", "\u0663", "0." + "0" * 400 + "1"),
)


@pytest.mark.parametrize(
    ("form", "valid", "invalid", "rule"),
    [
        (whole(0), ("0", "45000", "1" * 15), NO_COUNTS, "a whole number in plain digits"),
        (whole(2), ("2",), ("0", "1"), "at least 2"),
        (
            THROUGHPUT,
            ("92.72", "92.720", "92", "0.001", "123456789.5"),
            NO_THROUGHPUTS,
            "a decimal number above 0",
        ),
        (number("of seconds, ", 0), ("0", "1.5e+06", "007"), ("-3", "nan", "1e400", "1_0"),
         "must be a number of seconds, of at least 0"),
        (number("", 0, 1), ("0", "1", "0.5"), ("1.01",), "must be a number from 0 to 1"),
        (one_of("on", "off"), ("on", "off"), ("On", "", "on "), "must be one of on, off"),
        (TEXT, ("a", "H100 80GB", "x\u00e9"), ("", " ", " H", "H ", "H\n1", "H\r1"), "one line"),
    ],
    ids=["whole", "above 1", "throughput", "seconds", "share", "choice", "text"],
)  # fmt: skip
def test_form_takes_its_values_and_no_others(
    form: Form, valid: tuple[str, ...], invalid: tuple[str, ...], rule: str
) -> None:
    assert [value for value in valid if form.violated_rule(value) is not None] == []
    assert [value for value in invalid if rule not in (form.violated_rule(value) or "")] == []


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
    assert str(fault).startswith("t.csv:1:6: ")
    assert INVISIBLE[character] in fault.rule


@pytest.mark.parametrize("column", [name for name in COLUMNS if name != "measurement_type"])
@pytest.mark.parametrize("cell", FORMULAS)
def test_cell_that_a_spreadsheet_executes_is_one_fault(column: str, cell: str) -> None:
    [fault] = check(table(fields(**{column: cell})))
    assert places([fault]) == [(2, column)]
    if column in TEXTS:
        assert "a spreadsheet executes it as a formula" in fault.rule


def test_fault_names_the_character_of_a_formula_and_its_place() -> None:
    assert formula_rule('a; "=1') == (
        "must not have after a semicolon U+003D EQUALS SIGN (character 5 of the cell): "
        "a spreadsheet executes it as a formula"
    )
    rule = r"must not begin with U\+002D HYPHEN-MINUS \(character 1 of the cell\)"
    with pytest.raises(ValueError, match=f"^model_name '-foo': {rule}"):
        check_row(fact(model_name="-foo"))


@pytest.mark.parametrize(
    "value",
    ["meta-llama/Llama-3.1-8B", "CPU (AMD EPYC\u2122, 2.6 GHz)", "a=b", "Gr\u00f6\u00dfe", "a\nb"],
)
def test_visible_text_has_no_fault(value: str) -> None:
    assert invisible_rule(value) is None
    assert formula_rule(value) is None


@given(
    value=st.floats(0, 1e9),
    decimals=st.sampled_from([(6, 3), (4, 3), (4,), (3,)]),
    rounded=st.booleans(),
)
def test_interval_contains_every_number_that_is_written_so(
    *, value: float, decimals: tuple[int, ...], rounded: bool
) -> None:
    written = value
    for each in decimals if rounded else decimals[-1:]:
        written = round(written, each)
    text = format_notes({"x": written}).removeprefix("x=")
    found = number("", 0, decimals=decimals).before_rounding(float(text))
    assert found.least <= value <= found.most


@pytest.mark.parametrize(
    ("text", "slack"),
    [("0", 0.0005005), ("599.999", 0.0005005), ("1000", 0.0055005), ("123456", 0.5005005)],
)
def test_slack_is_that_of_the_last_digit(text: str, slack: float) -> None:
    found = number("", 0, decimals=(6, 3)).before_rounding(float(text))
    assert found.most - float(text) == pytest.approx(slack, abs=1e-6)
    assert found.least == pytest.approx(max(0.0, float(text) - slack), abs=1e-6)

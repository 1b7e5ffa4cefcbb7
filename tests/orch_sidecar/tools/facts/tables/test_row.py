"""The form of the notes, the rules for fields, characters that no cell may contain, and cells that
a spreadsheet executes."""

from __future__ import annotations

import math

import pytest

from orch_sidecar.tools.facts.tables.notes import SETTING_NAMES
from orch_sidecar.tools.facts.tables.row import (
    COLUMNS,
    format_notes,
    formula_rule,
    invisible_rule,
    parse_notes,
    violated_rule,
)
from orch_sidecar.tools.facts.tables.table import check, check_row, header_fault, parse
from tests.orch_sidecar.tools.facts.rows import HEADER, SOUND, fact, fields, places, table

START = "input_tokens=1; output_tokens=1; batching=on"
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


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_infinite_number_is_rejected_as_a_note(value: float) -> None:
    with pytest.raises(ValueError, match=f"the note ttft_p50_ms={value} must be a finite number"):
        format_notes({"ttft_p50_ms": value})


def test_notes_read_back_as_they_were_written() -> None:
    text = format_notes({"requests": 12, "window_s": 1.25, "tool": "orch bench"})
    assert parse_notes(text) == {"requests": "12", "window_s": "1.25", "tool": "orch bench"}


def test_measurement_key_does_not_depend_on_the_result() -> None:
    found = fact(throughput_tokens_per_sec=1.0, model_name="x", notes={"seed": 1})
    assert found.measurement == fact().measurement
    assert fact(batch=8).measurement != fact().measurement


@pytest.mark.parametrize("name", SETTING_NAMES)
def test_measurement_key_depends_on_the_engines_configuration(name: str) -> None:
    assert fact(notes={name: "2"}).measurement != fact(notes={name: "1"}).measurement
    assert fact(notes={name: "2"}).measurement != fact().measurement


@pytest.mark.parametrize("name", COLUMNS)
def test_valid_value_violates_no_rule(name: str) -> None:
    assert violated_rule(name, SOUND[name]) is None
    assert violated_rule(name, "") is not None


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("gpu_count", "-1", "at least 0"),
        ("batch", "0", "at least 1"),
        ("input_tokens", "-1", "at least 0"),
        ("output_tokens", "0", "at least 1"),
        ("measurement_type", "multi_stream", "must be one of single_stream, batched_online, offl"),
        ("measurement_type", "Offline", "must be one of single_stream, batched_online, offline, "),
        ("measurement_type", "aggregate", "offline, to_be_confirmed"),
        ("measurement_type", "per_user_stream", "must be one of single_stream"),
        ("scenario_notes", "", "'' is not key=value"),
        ("scenario_notes", "one user", "'one user' is not key=value"),
        ("scenario_notes", "input_tokens=1; output_tokens=1", "must be notes that begin with"),
        ("scenario_notes", "output_tokens=1; input_tokens=1; batching=on", "in this order"),
        ("scenario_notes", f"slots=8; {START}", "must be notes that begin with input_tokens, out"),
        ("scenario_notes", f"{START}; batching=on", "occurs twice"),
        ("scenario_notes", f"{START};", "'' is not key=value"),
        ("scenario_notes", f"input_tokens=1;\n{START}", "must be one line"),
        ("scenario_notes", f"{START}; ttft_p50_ms=~9", "ttft_p50_ms=~9 must be a number of milli"),
    ],
)
def test_invalid_value_is_rejected_with_its_rule(column: str, value: str, expected: str) -> None:
    assert expected in str(violated_rule(column, value))


@pytest.mark.parametrize("more", ["ttft_p50_ms=1.5e+06; gpu_cost=2 a=b", "given=model_id,gpu"])
def test_notes_can_follow_the_required_ones(more: str) -> None:
    assert violated_rule("scenario_notes", f"{START}; {more}") is None


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens"])
def test_notes_must_equal_the_columns(name: str) -> None:
    [fault] = check(table(fields(**{name: "64"})))
    assert fault.text == f"scenario_notes '{name}=512': must equal the column {name}, 64"


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

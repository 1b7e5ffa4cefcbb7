"""The form of the notes, and the rules for fields, alone and where they must agree."""

from __future__ import annotations

import math

import pytest

from orch_sidecar.tools.facts.tables.notes import SETTING_NAMES
from orch_sidecar.tools.facts.tables.row import (
    COLUMNS,
    format_notes,
    parse_notes,
    violated_rule,
)
from orch_sidecar.tools.facts.tables.table import check
from tests.orch_sidecar.tools.facts.rows import SOUND, fact, fields, places, table

NOTES = "input_tokens=512; output_tokens=512; batching="
START = "input_tokens=1; output_tokens=1; batching=on"


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


def contradicted(**changes: str) -> list[tuple[str, str | None]]:
    faults = check(table(fields(**changes)))
    return [(name, fault.found) for fault, (_, name) in zip(faults, places(faults), strict=True)]


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
    assert contradicted(**{name: "64"}) == [("scenario_notes", f"{name}=512")]

"""The rules for fields, and for fields that must agree."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.facts.tables.row import COLUMNS
from orch_sidecar.tools.facts.tables.rules import contradictions, violated_rule
from tests.orch_sidecar.tools.facts.rows import SOUND

COUNTS = ("gpu_count", "batch", "input_tokens", "output_tokens")
TEXTS = ("model_id", "model_name", "engine", "precision", "gpu", "source_tag")
NO_COUNTS = ("~45000", "32.0", "1e3", "1_000", " 5", "5 ", "+5", "-1", "007", "", "٣", "1" * 16)
NO_THROUGHPUTS = (
    *("0", "0.0", "-1", "+1", "1e3", "1_000", " 92.72", "92,72", ".5", "5.", "nan", "inf", ""),
    *("Infinity", "~90", "٣", "0." + "0" * 400 + "1"),
)


def contradicted(**changes: str) -> list[tuple[str, str]]:
    return [(found.column, found.value) for found in contradictions({**SOUND, **changes})]


@pytest.mark.parametrize("name", COLUMNS)
def test_valid_value_violates_no_rule(name: str) -> None:
    assert violated_rule(name, SOUND[name]) is None


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", ["", " ", " H100", "H100\t", "H\n100", "H\r100"])
def test_text_is_one_line_and_not_empty(name: str, value: str) -> None:
    assert violated_rule(name, value) is not None


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", NO_COUNTS)
def test_count_is_a_whole_number_in_plain_digits(name: str, value: str) -> None:
    rule = violated_rule(name, value)
    assert rule is not None
    assert "whole number" in rule


@pytest.mark.parametrize(("name", "least"), [*zip(COUNTS, (0, 1, 0, 1), strict=True)])
def test_count_has_a_minimum(name: str, least: int) -> None:
    assert violated_rule(name, str(least)) is None
    assert (violated_rule(name, "0") is None) == (least == 0)


@pytest.mark.parametrize("value", NO_THROUGHPUTS)
def test_throughput_is_a_decimal_above_0(value: str) -> None:
    rule = violated_rule("throughput_tokens_per_sec", value)
    assert rule is not None
    assert "decimal number above 0" in rule


@pytest.mark.parametrize("value", ["92.72", "92.720", "92", "0.001", "123456789.5"])
def test_throughput_may_be_written_with_any_number_of_digits(value: str) -> None:
    assert violated_rule("throughput_tokens_per_sec", value) is None


@pytest.mark.parametrize("value", ["online", "Offline", "batched-online", "multi_stream", ""])
def test_fault_of_an_unknown_label_names_the_known_ones(value: str) -> None:
    rule = violated_rule("measurement_type", value)
    assert rule == "must be one of single_stream, batched_online, offline, to_be_confirmed"


@pytest.mark.parametrize("value", ["aggregate", "per_user_stream"])
def test_fault_of_a_legacy_label_names_the_migration(value: str) -> None:
    rule = violated_rule("measurement_type", value)
    assert rule is not None
    assert "older files" in rule
    assert "--migrate-legacy" in rule


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", "'' is not key=value"),
        ("one user", "'one user' is not key=value"),
        ("input_tokens=1; output_tokens=1", "must begin with the notes"),
        ("output_tokens=1; input_tokens=1; batching=on", "in this order"),
        ("slots=8; input_tokens=1; output_tokens=1; batching=on", "must begin with the notes"),
        ("input_tokens=1; output_tokens=1; batching=on; batching=on", "occurs twice"),
        ("input_tokens=1; output_tokens=1; batching=on;", "'' is not key=value"),
        ("input_tokens=1;\noutput_tokens=1; batching=on", "must be one line"),
        ("input_tokens=1; output_tokens=1; batching=on; ttft_p50_ms=~9", "ttft_p50_ms=~9 must be"),
        ("input_tokens=1; output_tokens=1; batching=on; ttft_p95_ms=1_0", "ttft_p95_ms=1_0 must"),
        (
            f"input_tokens=1; output_tokens=1; batching=on; ttft_p95_ms={'9' * 400}",
            "must be a number of milliseconds",
        ),
    ],
)
def test_invalid_notes_are_rejected_with_their_rule(value: str, expected: str) -> None:
    assert expected in str(violated_rule("scenario_notes", value))


def test_notes_can_follow_the_required_ones() -> None:
    more = "input_tokens=1; output_tokens=1; batching=on; ttft_p50_ms=1.5e+06; gpu_cost=2 a=b"
    assert violated_rule("scenario_notes", more) is None


def test_valid_row_has_no_contradiction() -> None:
    assert contradicted() == []


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens"])
def test_notes_must_equal_the_columns(name: str) -> None:
    assert contradicted(**{name: "64"}) == [("scenario_notes", f"{name}=512")]


@pytest.mark.parametrize("batching", ["off", "unknown", "yes", "On", ""])
def test_batched_row_has_batching_on(batching: str) -> None:
    notes = f"input_tokens=512; output_tokens=512; batching={batching}"
    for label in ("batched_online", "offline"):
        found = contradicted(measurement_type=label, scenario_notes=notes)
        assert found == [("scenario_notes", f"batching={batching}")]


@pytest.mark.parametrize("label", ["batched_online", "offline"])
def test_batched_row_has_a_batch_above_1(label: str) -> None:
    assert contradicted(measurement_type=label, batch="1") == [("batch", "1")]


def test_single_stream_row_has_batch_1_and_batching_off() -> None:
    off = "input_tokens=512; output_tokens=512; batching=off"
    single = {"measurement_type": "single_stream", "batch": "1", "scenario_notes": off}
    assert contradicted(**single) == []
    assert contradicted(**{**single, "batch": "2"}) == [("batch", "2")]
    on = SOUND["scenario_notes"]
    assert contradicted(**{**single, "scenario_notes": on}) == [("scenario_notes", "batching=on")]


@pytest.mark.parametrize("batch", ["1", "32"])
@pytest.mark.parametrize("batching", ["on", "off", "unknown"])
def test_row_to_be_confirmed_can_have_any_batching(batch: str, batching: str) -> None:
    notes = f"input_tokens=512; output_tokens=512; batching={batching}"
    label = "to_be_confirmed"
    assert contradicted(measurement_type=label, batch=batch, scenario_notes=notes) == []


def test_batching_is_a_closed_set_under_every_label() -> None:
    notes = "input_tokens=512; output_tokens=512; batching=maybe"
    found = contradicted(measurement_type="to_be_confirmed", scenario_notes=notes)
    assert found == [("scenario_notes", "batching=maybe")]


@pytest.mark.parametrize("missing", ["batch", "measurement_type", "scenario_notes", "input_tokens"])
def test_field_with_a_fault_is_not_compared(missing: str) -> None:
    wrong = {**SOUND, "input_tokens": "64", "batch": "1"}
    del wrong[missing]
    columns = {found.column for found in contradictions(wrong)}
    assert missing not in columns
    if missing == "input_tokens":
        assert columns == {"batch"}


@pytest.mark.parametrize("label", ["single_stream", "batched_online"])
def test_label_is_not_compared_with_an_invalid_batch(label: str) -> None:
    row = {**SOUND, "measurement_type": label}
    del row["batch"], row["scenario_notes"]
    assert list(contradictions(row)) == []

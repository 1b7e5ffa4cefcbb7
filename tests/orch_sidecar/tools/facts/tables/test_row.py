"""The form of the notes."""

from __future__ import annotations

import math

import pytest

from orch_sidecar.tools.facts.tables.notes import ENGINE
from orch_sidecar.tools.facts.tables.row import format_notes, measurement_key, parse_notes
from tests.orch_sidecar.tools.facts.rows import fact


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_infinite_number_is_rejected_as_a_note(value: float) -> None:
    with pytest.raises(ValueError, match=f"the note ttft_p50_ms={value} must be a finite number"):
        format_notes({"ttft_p50_ms": value})


def test_notes_read_back_as_they_were_written() -> None:
    text = format_notes({"requests": 12, "window_s": 1.25, "tool": "orch bench"})
    assert parse_notes(text) == {"requests": "12", "window_s": "1.25", "tool": "orch bench"}


def test_measurement_key_does_not_depend_on_the_result() -> None:
    found = fact(throughput_tokens_per_sec=1.0, model_name="x", notes={"seed": 1})
    assert measurement_key(found) == measurement_key(fact())
    assert measurement_key(fact(batch=8)) != measurement_key(fact())


@pytest.mark.parametrize("name", ENGINE)
def test_measurement_key_depends_on_the_engines_configuration(name: str) -> None:
    assert measurement_key(fact(notes={name: "2"})) != measurement_key(fact(notes={name: "1"}))
    assert measurement_key(fact(notes={name: "2"})) != measurement_key(fact())

"""What a row's notes may be."""

from __future__ import annotations

import math

import pytest

from orch_sidecar.tools.facts.tables.row import measurement_of, notes_of, notes_text
from tests.orch_sidecar.tools.facts.rows import fact


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_number_that_is_not_finite_is_no_note(value: float) -> None:
    with pytest.raises(ValueError, match=f"the note ttft_p50_ms={value} must be a finite number"):
        notes_text({"ttft_p50_ms": value})


def test_notes_read_back_as_they_were_written() -> None:
    text = notes_text({"requests": 12, "window_s": 1.25, "tool": "orch bench"})
    assert notes_of(text) == {"requests": "12", "window_s": "1.25", "tool": "orch bench"}


def test_measurement_is_the_same_whatever_was_found() -> None:
    found = fact(throughput_tokens_per_sec=1.0, model_name="x", notes={"seed": 1})
    assert measurement_of(found) == measurement_of(fact())
    assert measurement_of(fact(batch=8)) != measurement_of(fact())

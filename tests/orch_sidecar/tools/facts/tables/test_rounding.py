"""The numbers that a rounded number may have been."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.facts.tables import forms
from orch_sidecar.tools.facts.tables.row import format_notes


@given(
    value=st.floats(0, 1e9),
    decimals=st.sampled_from([forms.WINDOW_S, forms.TIME_MS, forms.TOKENS_PER_S, forms.MEAN]),
    rounded=st.booleans(),
)
def test_interval_contains_every_number_that_is_written_so(
    *, value: float, decimals: tuple[int, ...], rounded: bool
) -> None:
    written = value
    for each in decimals if rounded else decimals[-1:]:
        written = round(written, each)
    text = format_notes({"x": written}).removeprefix("x=")
    found = forms.before_rounding(text, decimals)
    assert found.least <= value <= found.most


@pytest.mark.parametrize(
    ("text", "slack"),
    [("0", 0.0005005), ("599.999", 0.0005005), ("1000", 0.0055005), ("123456", 0.5005005)],
)
def test_slack_is_that_of_the_last_digit(text: str, slack: float) -> None:
    found = forms.before_rounding(text, forms.WINDOW_S)
    assert found.most - float(text) == pytest.approx(slack, abs=1e-6)
    assert found.least == pytest.approx(max(0.0, float(text) - slack), abs=1e-6)

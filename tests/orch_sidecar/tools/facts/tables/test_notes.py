"""Forms of values, and their rounding."""

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
from orch_sidecar.tools.facts.tables.row import format_notes

NO_COUNTS = (
    *("~45000", "32.0", "1e3", "1_000", " 5", "5 ", "+5", "-1", "007", "", "\u0663", "1" * 16),
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

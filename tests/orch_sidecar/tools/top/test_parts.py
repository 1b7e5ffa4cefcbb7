"""Parts of lines."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from orch_sidecar.tools.top.view import (
    duration,
    fitted,
    milliseconds,
    number,
    pair,
    slots_row,
    sparkline,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0, "0"), (9.84, "9.8"), (12.0, "12"), (812.4, "812"), (99_999.0, "99999"),
        (123_456, "123k"), (1e10, "10000M"),
    ],
)  # fmt: skip
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (1.24, "1.2 s"),
        (75, "75 s"),
        (720, "12 min"),
        (7300, "2 h"),
        (400_000, "5 d"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_times_of_requests() -> None:
    assert [milliseconds(value) for value in (None, 12.4, 12_345)] == ["-", "12 ms", "12 s"]
    assert pair([80.0, 240.4]) == "80/240"
    assert pair(None) == "-"


@pytest.mark.parametrize("text", ["", "abc", "abcdefghij", "模型模型模型模型", "a模b模c模"])
@pytest.mark.parametrize("width", [0, 1, 2, 5, 8])
def test_fitted_text_has_its_width(text: str, width: int) -> None:
    assert cell_len(fitted(text, width)) == width
    assert cell_len(fitted(text, width, right=True)) == width


def test_sparkline_rises_with_its_values() -> None:
    assert sparkline([0, 4, 8], 8, ascii_only=False) == "▁▅█"
    assert sparkline([1, 2], 0, ascii_only=True) == "__"


def test_slots_have_a_letter_each_and_many_share_one() -> None:
    few = {"total": 4, "free": 1, "interactive": 1, "bulk": 1, "foreign": 0, "closing": 1}
    assert slots_row(few).plain == "ibc."
    many = {"total": 256, "free": 1, "interactive": 200, "bulk": 55, "foreign": 0, "closing": 0}
    assert slots_row(many).plain == "i" * 50 + "b" * 14 + "."

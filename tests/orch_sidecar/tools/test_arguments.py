"""Numbers on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from orch_sidecar.tools import arguments


@pytest.mark.parametrize(
    ("parse", "text", "rule"),
    [
        (arguments.positive, "0", "'0' must be a number above 0"),
        (arguments.positive, "nan", "'nan' must be a number above 0"),
        (arguments.positive, "many", "'many' must be a number above 0"),
        (arguments.positive, "1e12", "'1e12' must be a number above 0"),
        (arguments.non_negative, "-1", "'-1' must be a number from 0"),
        (arguments.non_negative, "inf", "'inf' must be a number from 0"),
        (arguments.share, "1.1", "'1.1' must be a number from 0 to 1"),
        (arguments.count, "0", "'0' must be an integer from 1"),
        (arguments.count, "2.0", "'2.0' must be an integer from 1"),
        (arguments.count, "\u0663", "must be an integer from 1"),
        (arguments.counts, "1,,2", "'' must be an integer from 1"),
        (arguments.count_or_zero, "-1", "'-1' must be an integer from 0"),
        (arguments.count_or_zero, "9" * 19, "must have at most 18 digits"),
    ],
)
def test_invalid_number_is_rejected_with_value_and_rule(
    parse: Callable[[str], float], text: str, rule: str
) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=rule):
        parse(text)


def test_valid_numbers_are_returned() -> None:
    assert arguments.positive("1e3") == 1000.0
    assert arguments.non_negative("0") == 0.0
    assert arguments.share("1") == 1.0
    assert arguments.counts("4,1,16,4") == (1, 4, 16)
    assert (arguments.count("1"), arguments.count_or_zero("0")) == (1, 0)

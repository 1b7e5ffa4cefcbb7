"""The options of a replay."""

from __future__ import annotations

import argparse
from math import inf
from pathlib import Path

import pytest

from orch_sidecar.tools.traces.options import add_trace, factor, trace_of, window


def test_factor_is_a_number_or_a_quotient() -> None:
    assert [factor(text) for text in ("2", "0.5", "1/16")] == [2.0, 0.5, 0.0625]


@pytest.mark.parametrize("text", ["", "0", "-1", "1/", "/2", "1/0", "1/2/3", "nan", "half"])
def test_factor_must_be_above_0(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a number above 0"):
        factor(text)


def test_window_may_leave_out_either_end() -> None:
    assert [window(text) for text in ("1:2.5", ":3", "4:")] == [(1, 2.5), (0, 3), (4, inf)]


@pytest.mark.parametrize("text", ["5", "2:1", "1:1", "1:x", "-1:2", ":0"])
def test_window_must_have_a_length(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be (FROM:TO in seconds|a number)"):
        window(text)


def test_window_is_in_the_seconds_of_the_trace_and_factors_apply_after_it(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    rows = "".join(f"{at},160,32\n" for at in range(10))
    file.write_text(f"timestamp,input_length,output_length\n{rows}")
    parser = argparse.ArgumentParser()
    add_trace(parser)
    words = ["--trace", str(file), "--trace-window", "2:5", "--time-factor", "1/2"]
    options = parser.parse_args([*words, "--length-factor", "1/16"])
    found = trace_of(options, options.trace).requests
    assert [(each.at_s, each.prompt_tokens, each.output_tokens) for each in found] == [
        (0.0, 10, 2),
        (0.5, 10, 2),
        (1.0, 10, 2),
    ]

"""Traces of traffic: what is read, which part is replayed, and by which options."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.traces import (
    Trace,
    TracedRequest,
    add_trace,
    factor,
    read,
    traces_of,
    window,
)

TRACE = Trace(
    "some.csv",
    "0" * 64,
    (TracedRequest(0.0, 64, 8, (1, 2)), TracedRequest(2.0, 32, 6, (1,)), TracedRequest(5.0, 1, 1)),
    block_tokens=32,
)


def test_window_counts_its_times_from_its_start() -> None:
    found = TRACE.window(1.5, 5.0)
    assert found.requests == (TracedRequest(0.5, 32, 6, (1,)),)
    assert (found.name, found.sha256) == (TRACE.name, TRACE.sha256)


def test_window_without_end_goes_to_the_last_request() -> None:
    assert [each.at_s for each in TRACE.window(2.0).requests] == [0.0, 3.0]


def test_window_without_requests_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"some.csv: no request arrived from 6 to 9 s.* 5 s o"):
        TRACE.window(6, 9)


def test_factors_multiply_times_lengths_and_blocks() -> None:
    found = TRACE.scaled(time=0.5, lengths=0.25)
    assert found.requests == (
        TracedRequest(0.0, 16, 2, (1, 2)),
        TracedRequest(1.0, 8, 2, (1,)),
        TracedRequest(2.5, 1, 1),
    )
    assert found.block_tokens == 8


EXCERPTS = Path(__file__).parents[2] / "traces"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def parsed(file: Path, text: str) -> Trace:
    file.write_text(text, encoding="utf-8")
    return read(file)


def objection(file: Path, text: str) -> str:
    """Returns the error without the folder of the file."""
    with pytest.raises(ValueError, match=f"^{file}") as raised:
        parsed(file, text)
    return str(raised.value).replace(f"{file.parent}/", "")


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def row(at: Any, prompt: Any, output: Any, **more: Any) -> dict[str, Any]:
    return {"timestamp": at, "input_length": prompt, "output_length": output, **more}


def test_azure_times_are_dates(file: Path) -> None:
    text = AZURE + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    assert parsed(file, text).requests == (
        TracedRequest(0.0, 374, 44),
        TracedRequest(4.314579, 396, 109),
    )


def test_azure_times_of_2024_have_a_time_zone(file: Path) -> None:
    text = AZURE + "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,2399,6\n"
    assert [each.at_s for each in parsed(file, text).requests] == [0.0, 0.99007]


def test_burstgpt_times_are_seconds_and_failed_requests_are_left_out(file: Path) -> None:
    text = BURST + (
        "5,ChatGPT,472,18,490,Conversation log\n"
        "7.5,GPT-4,417,276,693,API log\n"
        "9,ChatGPT,30,0,30,API log\n"
    )
    found = parsed(file, text)
    assert found.requests == (TracedRequest(0.0, 472, 18), TracedRequest(2.5, 417, 276))


def test_guidellm_times_are_seconds_in_csv_and_in_json(file: Path) -> None:
    wanted = (TracedRequest(0.0, 256, 128), TracedRequest(3.0, 300, 100))
    text = "timestamp,input_length,output_length\n1,256,128\n4,300,100\n"
    assert parsed(file, text).requests == wanted
    assert parsed(file, jsonl(row(1, 256, 128), row(4, 300, 100))).requests == wanted


def test_mooncake_times_are_milliseconds_beside_blocks_of_512_tokens(file: Path) -> None:
    text = jsonl(
        row(0, 1300, 52, hash_ids=[46, 47, 48]),
        row(10_535, 700, 26, hash_ids=[46, 49]),
    )
    found = parsed(file, text)
    assert found.block_tokens == 512
    assert found.requests == (
        TracedRequest(0.0, 1300, 52, (46, 47, 48)),
        TracedRequest(10.535, 700, 26, (46, 49)),
    )


def test_vllm_times_are_seconds_beside_blocks_of_16_tokens(file: Path) -> None:
    text = jsonl(row(61.114, 35, 5, hash_ids=[1, 2, 3]), row(63, 20, 4, hash_ids=[1, 4]))
    found = parsed(file, text)
    assert found.block_tokens == 16
    assert [each.at_s for each in found.requests] == [0.0, 1.886]


def test_size_of_other_blocks_follows_from_the_lengths(file: Path) -> None:
    text = jsonl(row(0, 300, 5, hash_ids=[1, 2, 3]), row(1, 128, 4, hash_ids=[1]))
    assert parsed(file, text).block_tokens == 128


def test_rows_are_sorted_by_time(file: Path) -> None:
    found = parsed(file, jsonl(row(4, 3, 1), row(2, 2, 1), row(4, 4, 1)))
    assert [(each.at_s, each.prompt_tokens) for each in found.requests] == [
        (0.0, 2),
        (2.0, 3),
        (2.0, 4),
    ]


def test_name_and_hash_are_those_of_the_file(file: Path) -> None:
    text = jsonl(row(0, 1, 1))
    found = parsed(file, text)
    assert (found.name, found.sha256) == ("trace", sha256(text.encode()).hexdigest())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (AZURE + "yesterday,1,1\n", "trace:2: TIMESTAMP is 'yesterday': it must be seconds"),
        (AZURE + "2023-11-16 18:15:46,-1,1\n", "trace:2: ContextTokens is '-1': Input should be "),
        (
            AZURE + "2023-11-16 18:15:46,1,1.5\n",
            "trace:2: GeneratedTokens is '1.5': Input should be",
        ),
        (AZURE + "2023-11-16 18:15:46,1\n", "trace:2: the row has 2 cells: it must have the 3"),
        (AZURE + '2023-11-16 18:15:46,"1,1\n', "trace:2: invalid CSV: unexpected end"),
        (BURST + "x,GPT-4,1,1,2,API log\n", "trace:2: Timestamp is 'x': it must be seconds, or"),
        (BURST + "nan,GPT-4,1,1,2,API log\n", "trace:2: Timestamp is nan: Input should be a fin"),
        (BURST + f"1,GPT-4,{'9' * 5000},1,2,A\n", "trace:2: Request tokens is '999"),
        ("when,in,out\n1,2,3\n", "trace:1: the columns are when, in, out: they must include"),
        ("", "trace:1: the columns are none: they must include those of a known trace"),
        (AZURE, "trace: the file must contain at least one answered request"),
        (jsonl(row(0, 1, 1), {"timestamp": 1}), "trace:2: input_length is missing"),
        (jsonl(row("soon", 1, 1)), "trace:1: timestamp is 'soon': it must be seconds, or"),
        (jsonl(row(0, 1.5, 1)), "trace:1: input_length is 1.5: Input should be a valid integer"),
        (
            jsonl(row(0, 1, 1, hash_ids=[1.5])),
            "trace:1: hash_ids.0 is 1.5: Input should be",
        ),
        ('{"timestamp": 0\n', "trace:2: invalid JSON: "),
        (jsonl(row(0, 1, 1)) + "[1]\n", "trace:2: it is [1]: must be an object"),
        (
            jsonl(row(0, 512, 1, hash_ids=[1]), row(1, 512, 1, hash_ids=[1, 2])),
            "trace:2: the number of hash_ids is 2: it must be as many as blocks of one size need",
        ),
    ],
)
def test_error_names_file_line_value_and_rule(file: Path, text: str, wanted: str) -> None:
    assert objection(file, text).startswith(wanted)


def test_file_must_be_utf_8(file: Path) -> None:
    file.write_bytes(AZURE.encode() + b"\xff\n")
    with pytest.raises(ValueError, match=r"trace:2: the text is not UTF-8, .* 0xff"):
        read(file)


@given(st.text())
def test_any_text_is_a_trace_or_an_invalid_one(tmp_path_factory: Any, text: str) -> None:
    file = tmp_path_factory.mktemp("any") / "trace"
    file.write_bytes(text.encode("utf-8", "replace"))
    sound: object
    try:
        sound = read(file).requests
    except ValueError as error:
        sound = str(error).startswith(str(file))
    assert sound


@pytest.mark.parametrize(
    ("name", "rows", "busiest", "block_tokens"),
    [
        ("azure_llm_2023_conv.csv", 600, 10, None),
        ("azure_llm_2023_code.csv", 400, 65, None),
        ("mooncake_synthetic.jsonl", 300, 9, 512),
    ],
)
def test_excerpts_of_public_traces(
    name: str, rows: int, busiest: int, block_tokens: int | None
) -> None:
    found = read(EXCERPTS / name)
    seconds = Counter(int(each.at_s) for each in found.requests)
    assert (len(found.requests), max(seconds.values())) == (rows, busiest)
    assert found.block_tokens == block_tokens


def test_error_about_a_file_that_is_no_trace_is_short_and_printable(file: Path) -> None:
    text = objection(file, "\x1b[2J" + "x" * 100_000)
    assert text.isprintable()
    assert len(text) < 600


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
    found = traces_of(options)[0].requests
    assert [(each.at_s, each.prompt_tokens, each.output_tokens) for each in found] == [
        (0.0, 10, 2),
        (0.5, 10, 2),
        (1.0, 10, 2),
    ]

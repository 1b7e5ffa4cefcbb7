"""Token counts from the end of an answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.usage import TAIL_BYTES, read


def test_counts_of_a_json_answer() -> None:
    answer = {
        "id": "cmpl-1",
        "choices": [{"text": "hello"}],
        "usage": {"prompt_tokens": 5, "total_tokens": 12, "completion_tokens": 7},
        "kv_transfer_params": None,
    }
    assert read(json.dumps(answer).encode()) == (5, 7)
    assert read(json.dumps(answer, separators=(",", ":")).encode()) == (5, 7)


def test_counts_of_responses_and_messages() -> None:
    tail = b'"usage":{"input_tokens":12,"input_tokens_details":{"cached_tokens":3},'
    assert read(tail + b'"output_tokens":34,"output_tokens_details":{"reasoning_tokens":1}}}') == (
        12,
        34,
    )


def test_counts_are_found_across_two_writes() -> None:
    assert read(b'data: {"usage":{"prompt_to', b'kens":5,"completion_tokens":7}}\n\n') == (5, 7)


def test_last_counts_are_the_ones_that_count() -> None:
    first = b'data: {"usage":{"prompt_tokens":5,"completion_tokens":1}}\n\n'
    last = b'data: {"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
    assert read(first, last) == (5, 2)


@pytest.mark.parametrize("answer", [b"", b"data: [DONE]\n\n", b'{"error": {"message": "no"}}'])
def test_absent_counts_are_none(answer: bytes) -> None:
    assert read(b"", answer) == (None, None)
    assert read() == (None, None)


def test_null_counts_are_none() -> None:
    assert read(b'{"usage": {"prompt_tokens": null, "completion_tokens": 3}}') == (None, 3)


def test_what_is_far_from_the_end_is_not_looked_at() -> None:
    usage = b'{"prompt_tokens": 5, "completion_tokens": 7}'
    assert read(usage, b" " * TAIL_BYTES) == (None, None)


@given(st.text(st.sampled_from('"\\:{} 0123456789\n') | st.characters(codec="utf-8"), max_size=60))
def test_generated_text_is_never_mistaken_for_usage(text: str) -> None:
    told = f'"prompt_tokens": 111, "completion_tokens": 222 {text} "output_tokens":333'
    choices = json.dumps({"choices": [{"text": told}]}).encode()
    assert read(choices) == (None, None)

"""Token counts and failures from the end of an answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orch_sidecar.usage import FIRST_BYTES_PER_TOKEN, TAIL_BYTES, PromptSize, end_of, failed, read


def counts(before: bytes, last: bytes) -> tuple[int | None, int | None]:
    """Those that the last two writes of an answer tell."""
    return read(end_of(before, last))


def test_counts_of_a_json_answer() -> None:
    answer = {
        "id": "cmpl-1",
        "choices": [{"text": "hello"}],
        "usage": {"prompt_tokens": 5, "total_tokens": 12, "completion_tokens": 7},
        "kv_transfer_params": None,
    }
    assert counts(b"", json.dumps(answer).encode()) == (5, 7)
    assert counts(b"", json.dumps(answer, separators=(",", ":")).encode()) == (5, 7)


def test_counts_of_responses_and_messages() -> None:
    tail = b'"usage":{"input_tokens":12,"input_tokens_details":{"cached_tokens":3},'
    end = b'"output_tokens":34,"output_tokens_details":{"reasoning_tokens":1}}}'
    assert counts(b"", tail + end) == (12, 34)
    assert counts(b"", b'data: {"type":"message_delta","usage":{"output_tokens":34}}') == (
        None,
        34,
    )


def test_counts_are_found_across_two_writes() -> None:
    assert counts(b'data: {"usage":{"prompt_to', b'kens":5,"completion_tokens":7}}\n\n') == (
        5,
        7,
    )


def test_last_counts_are_the_ones_that_count() -> None:
    first = b'data: {"usage":{"prompt_tokens":5,"completion_tokens":1}}\n\n'
    last = b'data: {"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
    assert counts(first, last) == (5, 2)


@pytest.mark.parametrize("answer", [b"", b"data: [DONE]\n\n", b'{"error": {"message": "no"}}'])
def test_absent_counts_are_none(answer: bytes) -> None:
    assert counts(b"", answer) == (None, None)


def test_null_counts_are_none() -> None:
    assert counts(b"", b'{"usage": {"prompt_tokens": null, "completion_tokens": 3}}') == (
        None,
        3,
    )


def test_what_is_far_from_the_end_is_not_looked_at() -> None:
    usage = b'"usage":{"prompt_tokens": 5, "completion_tokens": 7}'
    assert counts(usage, b" ") == (5, 7)
    assert counts(usage, b" " * TAIL_BYTES) == (None, None)


@given(st.text(st.sampled_from('"\\:{} 0123456789\n') | st.characters(codec="utf-8"), max_size=60))
def test_generated_text_is_never_mistaken_for_usage(text: str) -> None:
    told = f'"usage":{{"prompt_tokens": 111, "completion_tokens": 222 {text} "output_tokens":333'
    choices = json.dumps({"choices": [{"text": told}]}).encode()
    assert counts(b"", choices) == (None, None)


def test_prompt_is_estimated_by_its_size_and_never_longer_than_the_context() -> None:
    size = PromptSize()
    assert size.estimate(int(100 * FIRST_BYTES_PER_TOKEN), 2048) == 100
    assert size.estimate(1, None) == 1
    assert size.estimate(10**6, 2048) == 2048


def test_estimate_follows_what_answers_say_slowly_and_within_reason() -> None:
    size = PromptSize()
    for _ in range(500):
        size.learn(500, 100)
    assert size.bytes_per_token == pytest.approx(5.0, abs=0.01)
    size.learn(10**9, 1)  # an image is no text
    assert size.bytes_per_token < 7
    size.learn(500, 0)
    assert size.bytes_per_token < 7


@pytest.mark.parametrize(
    "writes",
    [
        (b"", b'data: {"error": {"message": "it died", "code": 500}}\n\ndata: [DONE]\n\n'),
        (b'39\r\ndata: {"error": {"code": 500}}\n\n\r\n', b"e\r\ndata: [DONE]\n\n\r\n"),
        (b"", b'event: error\ndata: {"type": "error"}\n\n'),
        (b'event: response.failed\ndata: {"type": 1}\n\n', b"data: [DONE]\n\n"),
        (b'x\r\n\r\nevent: error\r\ndata: {"type": "error"}\r\n\r\n', b""),
    ],
)
def test_stream_that_ended_with_an_error_is_known_as_one(writes: tuple[bytes, bytes]) -> None:
    assert failed(*writes)


@given(text=st.text())
@example(text='\ndata: {"error": 1}\n\nevent: error\n')
def test_generated_text_is_never_mistaken_for_an_error(text: str) -> None:
    event = b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"
    assert not failed(event, b"data: [DONE]\n\n")
    assert not failed(b"", event)

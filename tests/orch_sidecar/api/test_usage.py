"""Token counts and failures, extracted from answers as they are forwarded."""

from __future__ import annotations

import json
import re
import time
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orch_sidecar.api import usage
from orch_sidecar.api.usage import (
    FIRST_BYTES_PER_TOKEN,
    MAX_PIECE_BYTES,
    MAX_PIECES,
    TAIL_BYTES,
    AnswerReader,
    PromptSize,
    read,
)
from tests.fuzz import examples
from tests.orch_sidecar.answers import PLACES, cut
from tests.orch_sidecar.spoken import DONE, SPOKEN, Spoken, openai_stream, sse

SPOKEN_CASES = pytest.mark.parametrize("spoken", SPOKEN, ids=lambda spoken: spoken.name)
NOTHING = (None, None, None, None)
_PARTS = [
    b'"prompt_tokens":12', b'"input_tokens": 3', b'"completion_tokens":7', b'"output_tokens":\t8',
    b'"output_tokens":1234567890123', b'"prompt_tokens":1234567890123', b'"completion_tokens":null',
    b'"output_tokens":-1', b'"other":1.5', b'"cache_read_input_tokens":4',
    b'"a\\"output_tokens":9', b",", b" ", b"{", b"}",
    b'"usage":{', b"0",
]  # fmt: skip


def reading(pieces: list[bytes], *, events: bool) -> AnswerReader:
    """A reader that has received these pieces, folded when it asks for that."""
    reader = AnswerReader(events=events)
    for piece in pieces:
        reader.content.append(piece)
        if len(reader.content) >= MAX_PIECES or len(piece) > MAX_PIECE_BYTES:
            reader.fold()
    return reader


def reader_of(pieces: list[bytes], *, events: bool) -> AnswerReader:
    """A reader of a complete answer in these pieces."""
    reader = reading(pieces, events=events)
    reader.end()
    return reader


def check(spoken: Spoken, pieces: list[bytes]) -> None:
    reader = reader_of(pieces, events=spoken.stream)
    assert (reader.counts, reader.failed) == (spoken.counts, spoken.failed)
    reader.end()
    assert (reader.counts, reader.failed) == (spoken.counts, spoken.failed), "ended again"


@SPOKEN_CASES
def test_answer_cut_at_any_byte_is_read_the_same(spoken: Spoken) -> None:
    length = len(spoken.body)
    for at in {*range(min(length, 400)), *range(max(0, length - 600), length)}:
        check(spoken, [spoken.body[:at], spoken.body[at:]])
    for size in (1, 2, 7, 100, TAIL_BYTES):
        check(spoken, [spoken.body[i : i + size] for i in range(0, len(spoken.body), size)])


@given(st.sampled_from(SPOKEN), PLACES)
def test_answer_cut_anywhere_is_read_the_same(spoken: Spoken, places: list[int]) -> None:
    check(spoken, cut(spoken.body, places))


STREAMS = [spoken for spoken in SPOKEN if spoken.stream]


@given(st.sampled_from(STREAMS), PLACES)
def test_stream_is_finished_by_its_last_event_and_by_none_before(
    spoken: Spoken, places: list[int]
) -> None:
    assert reading(cut(spoken.body, places), events=True).finished
    last = spoken.body[:-2].rfind(b"\n\n") + 2
    for part in (spoken.body[:-1], spoken.body[:last]):
        assert not reading(cut(part, places), events=True).finished


@given(st.sampled_from(STREAMS), st.integers(0, 500), PLACES)
def test_bytes_far_from_the_end_are_not_kept(
    spoken: Spoken, length: int, places: list[int]
) -> None:
    first, rest = spoken.body.split(b"\n\n", 1)
    pieces = [
        first + b"\n\n",
        *[sse({"choices": [{"text": "x" * 40}]})] * length,
        *cut(rest, places),
    ]
    check(spoken, pieces)
    reader = AnswerReader(events=True)
    for piece in pieces:
        reader.content.append(piece)
        reader.fold()
    longest = max(len(event) for event in (b"x" * 100, *spoken.body.split(b"\n\n")))
    assert len(reader._kept) <= TAIL_BYTES + longest + 4


@pytest.mark.parametrize("size", [40, MAX_PIECE_BYTES])
def test_counts_of_a_long_first_event_are_read(size: int) -> None:
    started = {"type": "message_start", "message": {"id": "x" * 7000, "usage": {"input_tokens": 9}}}
    deltas = [{"type": "content_block_delta", "delta": {"text": "x" * 40}}] * 100
    ended = {"type": "message_delta", "usage": {"output_tokens": 5}}
    body = b"".join(sse(event) for event in (started, *deltas, ended))
    pieces = [body[: 7000 + 2 * size], body[7000 + 2 * size :]]
    assert reader_of(pieces, events=True).counts == (9, 5, None, None)


def test_continuous_counts_of_a_stream_without_an_end_are_the_last_ones() -> None:
    stream = openai_stream(SPOKEN[0].api, with_usage=False, continuous=True)
    assert reader_of([stream], events=True).counts == (5, 3, 4, 1)


def test_null_counts_between_and_after_the_counts_are_skipped() -> None:
    counts = b'data: {"usage": {"prompt_tokens": 5, "completion_tokens": 2}}\n\n'
    null = b'data: {"choices": [], "usage": null}\n\n'
    assert read(null + counts + null) == (5, 2, None, None)
    assert read(null) == NOTHING
    assert read(b'{"usage": {"prompt_tokens": null, "completion_tokens": 3}}') == (
        None,
        3,
        None,
        None,
    )
    assert read(b'{"usage": {}, "completion_tokens": 3}') == NOTHING


def test_longer_names_with_the_same_end_are_no_counts() -> None:
    schema = {"properties": {'a "usage': {"input_tokens": 1, "output_tokens": 2}}}
    assert read(json.dumps({"tools": [schema]}).encode()) == NOTHING


@pytest.mark.parametrize(
    "text", [sse({"choices": [{"text": " one"}]}) * 20_000, b'{"usage":1,' * 100_000]
)
def test_megabyte_is_read_in_milliseconds(text: bytes) -> None:
    """A stream is read at its end, in the turn of the event loop that passes it on."""
    took_s = []
    for _ in range(5):
        reader = AnswerReader(events=True)
        reader.content.append(text)
        began_s = time.process_time()
        reader.end()
        took_s.append(time.process_time() - began_s)
    assert min(took_s) / len(text) * 1e6 < 0.008


@pytest.mark.parametrize("outputs", [b'"output_tokens":1,', b'"1\\"completion_tokens":1,'])
def test_object_with_many_counts_takes_no_square_of_its_size(
    outputs: bytes,
) -> None:
    """Such as a client's tools, echoed by the Responses API: they would hold the event loop."""
    text = b'{"usage":{"input_tokens":1,' + outputs * 8_000 + b'"more":{}}}'
    began_s = time.process_time()
    assert read(text) == (1, 1, None, None)
    assert time.process_time() - began_s < 0.5  # milliseconds; the square is seconds


@settings(max_examples=examples(1000), deadline=None)
@given(st.lists(st.sampled_from(_PARTS), max_size=12))
def test_both_counts_are_those_that_are_found_one_by_one(parts: list[bytes]) -> None:
    text = b'"usage":{' + b"".join(parts) + b"}"
    at_once = read(text)
    with patch.object(usage, "_TOKEN_COUNTS", re.compile(b"(?!)")):
        assert read(text) == at_once


@pytest.mark.parametrize("answer", [b"", DONE, b'{"error": {"message": "no"}}'])
def test_absent_counts_are_none(answer: bytes) -> None:
    assert read(answer) == NOTHING


@given(st.text(st.sampled_from('"\\:{} 0123456789\n') | st.characters(codec="utf-8"), max_size=60))
def test_generated_text_is_never_mistaken_for_usage(text: str) -> None:
    body = f'"usage":{{"prompt_tokens": 111, "completion_tokens": 222 {text} "output_tokens":333'
    assert read(json.dumps({"choices": [{"text": body}]}).encode()) == NOTHING


@given(text=st.text())
@example(text='\ndata: {"error": 1}\n\nevent: error\n')
def test_generated_text_is_never_mistaken_for_an_error(text: str) -> None:
    stream = sse({"choices": [{"text": text}]}) + DONE
    assert not reader_of([stream], events=True).failed


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error": {"message": "it died", "code": 500}}\n\n',
        b'data:{"error":"it died"}\r\n\r\n',
        b'event: error\ndata: {"type": "error"}\n\n',
        b'event:error\r\ndata: {"type": "error"}\r\n\r\n',
        b'event: response.failed\ndata: {"type": "response.failed"}\n\n',
    ],
)
@pytest.mark.parametrize("before", [b"", sse({"choices": []}), b"data: {}\r\n\r\n", b": ping\n\n"])
@pytest.mark.parametrize("after", [b"", DONE, b"data: [DONE]\r\n\r\n"])
def test_stream_that_reports_an_error_has_failed(before: bytes, event: bytes, after: bytes) -> None:
    assert reader_of([before, event, after], events=True).failed
    assert not reader_of([before, event, after], events=False).failed


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error": null, "choices": []}\n\n',
        b"event: errors\ndata: {}\n\n",
        b'event: response.incomplete\ndata: {"type": "response.incomplete"}\n\n',
        b": event: error\n\n",
    ],
)
def test_events_that_are_no_errors(event: bytes) -> None:
    assert not reader_of([event], events=True).failed


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        (b"", False),
        (b"data: x", False),
        (b"data: x\n", False),
        (b"data: x\r\n", False),
        (b"data: x\n\n", True),
        (b"data: x\r\n\r\n", True),
    ],
)
def test_end_of_an_event_is_found_wherever_it_is_cut(text: bytes, ended: bool) -> None:
    for at in range(len(text) + 1):
        for before in (b"", b"data: " + b"x" * 9000 + b"\n\n"):
            reader = reading([before, text[:at], text[at:]], events=True)
            assert reader.at_event_boundary is (ended or (not text and bool(before)))


def test_prompt_is_estimated_by_its_size_and_never_longer_than_the_context() -> None:
    size = PromptSize()
    assert size.estimate(int(100 * FIRST_BYTES_PER_TOKEN), 2048) == 100
    assert size.estimate(1, None) == 1
    assert size.estimate(10**6, 2048) == 2048


def test_estimate_follows_answers_slowly_and_within_bounds() -> None:
    size = PromptSize()
    for _ in range(500):
        size.learn(500, 100)
    assert size.bytes_per_token == pytest.approx(5.0, abs=0.01)
    size.learn(10**9, 1)  # an image is no text
    assert size.bytes_per_token < 7
    size.learn(500, 0)
    assert size.bytes_per_token < 7

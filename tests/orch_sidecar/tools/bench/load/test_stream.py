"""Events of a stream: which bring tokens, however their bytes come."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.tools.bench.load.call import shown
from orch_sidecar.tools.bench.load.client import EventStream, code_of
from tests.orch_sidecar.answers import PLACES, cut

DONE = b"data: [DONE]\n\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}}


def event(document: Any, separators: tuple[str, str] = (",", ":")) -> bytes:
    return b"data: " + json.dumps(document, separators=separators).encode() + b"\n\n"


def completion(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


def chat(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def brought(*documents: Any) -> int:
    return sum(EventStream().feed(event(document)) for document in documents)


ANSWER = b"".join(
    (
        event(chat(role="assistant", content="")),
        b": the connection is alive\n\n",
        event(chat(content="one\n\nline")),
        event(chat(content="data: [DONE]")),
        event(chat(content="three", finish="length")),
        event(USAGE),
        DONE,
    )
)


@given(places=PLACES, crlf=st.booleans())
def test_events_are_the_same_wherever_their_bytes_are_cut(places: list[int], crlf: bool) -> None:
    answer = ANSWER.replace(b"\n", b"\r\n") if crlf else ANSWER
    stream = EventStream()
    assert sum(stream.feed(part) for part in cut(answer, places)) == 3
    stream.end()
    assert (stream.usage, stream.error, stream.done) == ((7, 3), "", True)


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_counts_alone_bring_no_token(separators: tuple[str, str]) -> None:
    stream = EventStream()
    assert stream.feed(event(USAGE, separators)) == 0
    assert stream.usage == (7, 3)


def test_whose_turn_it_is_brings_no_token() -> None:
    assert brought(chat(role="assistant", content=""), chat(role="assistant")) == 0
    assert brought(chat(role="assistant", content="a")) == 1


def test_thoughts_and_tool_calls_bring_tokens() -> None:
    assert brought(chat(reasoning_content="hm"), chat(tool_calls=[{"index": 0}])) == 2


def test_text_that_is_held_back_is_a_token_all_the_same() -> None:
    """Half a character, or a special token: vLLM sends the event with an empty text."""
    assert brought(completion(""), chat(content="")) == 2


def test_end_without_a_text_brings_no_token() -> None:
    assert brought(completion("", "stop"), chat("stop"), chat("stop", content="")) == 0
    assert brought(completion("a", "length"), chat("length", content="a")) == 2


def test_null_usage_is_ignored() -> None:
    stream = EventStream()
    stream.feed(event(completion("a") | {"usage": None}))
    assert stream.usage == (None, None)


def test_error_in_a_stream_is_reported_by_its_code() -> None:
    stream = EventStream()
    error = {"error": {"message": "gone", "type": "engine_gone", "code": 502}}
    assert stream.feed(event(completion("a")) + event(error) + DONE) == 1
    assert (stream.error, stream.done) == ("502", True)


@pytest.mark.parametrize("data", [b"{", b"[]", b"1", b"\xff"])
def test_event_that_is_not_an_object_is_an_error(data: bytes) -> None:
    stream = EventStream()
    assert stream.feed(b"data: " + data + b"\n\n") == 0
    assert stream.error == "an event is not a JSON object"


@pytest.mark.parametrize("choices", [None, {}, [1], [{"delta": None, "finish_reason": "stop"}]])
def test_choices_of_another_shape_bring_no_token(choices: Any) -> None:
    assert brought({"choices": choices}) == 0


def test_end_without_a_blank_line_after_it_is_one_when_nothing_more_comes() -> None:
    stream = EventStream()
    stream.feed(b"data: [DONE]")
    assert not stream.done
    stream.end()
    assert stream.done
    assert stream.error == ""


def test_event_without_a_blank_after_the_colon_is_read() -> None:
    stream = EventStream()
    assert stream.feed(event(completion("a")).replace(b"data: ", b"data:")) == 1
    stream.feed(b"data:[DONE]\n\n")
    assert stream.done


def test_event_of_several_megabytes_is_not_searched_again_with_each_of_its_parts() -> None:
    stream = EventStream()
    whole = event(completion("a" * 4_000_000))
    began_s = time.process_time()
    parts = [stream.feed(whole[at : at + 16_384]) for at in range(0, len(whole), 16_384)]
    assert sum(parts) == 1
    assert time.process_time() - began_s < 2.0


def test_code_of_an_error_is_its_code_else_its_type_else_its_message() -> None:
    error = {"message": "m", "type": "t", "code": "c"}
    assert code_of({"error": error}) == "c"
    assert code_of({"error": error | {"code": None}}) == "t"
    assert code_of({"error": {"message": "m"}}) == "m"
    assert code_of({"error": "Unauthorized"}) == "Unauthorized"
    assert code_of({"detail": "Not Found"}) == "{'detail': 'Not Found'}"
    assert code_of("") == "an empty response"


def test_server_text_is_one_line_without_control_characters() -> None:
    assert shown("a\x1b[31m\r\n\tb" + "x" * 100, 12) == "a [31m bxxxx"

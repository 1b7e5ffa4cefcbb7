"""Events of a stream: which bring tokens, however their bytes come."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orch_sidecar.tools.bench.load.call import Call, shown
from orch_sidecar.tools.bench.load.client import EventStream, code_of

DONE = b"data: [DONE]\n\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}}


def event(document: Any, separators: tuple[str, str] = (",", ":")) -> bytes:
    return b"data: " + json.dumps(document, separators=separators).encode() + b"\n\n"


def completion(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


def chat(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def read(*parts: bytes) -> tuple[Call, EventStream]:
    """What is read of these bytes, which come one part a second."""
    call = Call()
    stream = EventStream(call)
    for at_s, part in enumerate(parts):
        stream.feed(part, float(at_s))
    return call, stream


def brought(*documents: Any) -> int:
    return len(read(*map(event, documents))[0].event_s)


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


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_counts_alone_bring_no_token(separators: tuple[str, str]) -> None:
    call, stream = read(event(USAGE, separators))
    assert (list(call.event_s), stream.last_s) == ([], None)
    assert (call.input_tokens, call.output_tokens) == (7, 3)


def test_whose_turn_it_is_brings_no_token() -> None:
    assert brought(chat(role="assistant", content=""), chat(role="assistant")) == 0
    assert brought(chat(role="assistant", content="a")) == 1


def test_thoughts_and_tool_calls_bring_tokens() -> None:
    assert brought(chat(reasoning_content="hm"), chat(tool_calls=[{"index": 0}])) == 2


def test_text_that_is_held_back_is_a_token_all_the_same() -> None:
    """Half a character, or a special token: vLLM sends the event with an empty text."""
    assert brought(completion(""), chat(content="")) == 2


def test_end_without_a_text_brings_no_token_and_ends_the_sequence() -> None:
    assert brought(completion("", "stop"), chat("stop"), chat("stop", content="")) == 0
    assert brought(completion("a", "length"), chat("length", content="a")) == 2
    call, stream = read(event(completion("a")), event(completion("", "stop")), event(USAGE))
    assert (list(call.event_s), stream.last_s) == ([0.0], 1.0)


def test_null_usage_is_ignored() -> None:
    call, _ = read(event(completion("a") | {"usage": None}))
    assert (call.input_tokens, call.output_tokens) == (None, None)


def test_error_in_a_stream_is_reported_by_its_code() -> None:
    error = {"error": {"message": "gone", "type": "engine_gone", "code": 502}}
    call, stream = read(event(completion("a")) + event(error) + DONE)
    assert (len(call.event_s), stream.error, stream.done) == (1, "502", True)


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"1",
        b"\xff",
        b'{"choices":{}}',
        b'{"choices":[1]}',
        b'{"choices":[{"text":1}]}',
    ],
)
def test_event_of_another_shape_is_an_error(data: bytes) -> None:
    call, stream = read(b"data: " + data + b"\n\n")
    assert stream.error.startswith("an event is invalid: ")
    assert list(call.event_s) == []


def test_choices_that_are_null_bring_no_token() -> None:
    assert brought({"choices": None}, {"choices": [{"delta": None, "finish_reason": "stop"}]}) == 0


def test_code_of_an_error_is_its_code_else_its_type_else_its_message() -> None:
    error = {"message": "m", "type": "t", "code": "c"}
    for document, code in (
        ({"error": error}, "c"),
        ({"error": error | {"code": None}}, "t"),
        ({"error": {"message": "m"}}, "m"),
        ({"error": "Unauthorized"}, "Unauthorized"),
        ({"detail": "Not Found"}, "{'detail': 'Not Found'}"),
    ):
        assert code_of(json.dumps(document).encode()) == code
    assert code_of(b"") == "an empty response"


def test_server_text_is_one_line_without_control_characters() -> None:
    assert shown("a\x1b[31m\r\n\tb" + "x" * 100, 12) == "a [31m bxxxx"

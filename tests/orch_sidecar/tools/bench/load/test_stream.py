"""Events of a stream: which bring tokens, however their bytes come."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from orch_sidecar.tools.bench.load.call import Call, Request, shown
from orch_sidecar.tools.bench.load.response import Response, code_of

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
DONE = b"data: [DONE]\n\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3}}


def event(document: Any, separators: tuple[str, str] = (",", ":")) -> bytes:
    return b"data: " + json.dumps(document, separators=separators).encode() + b"\n\n"


def completion(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


def chat(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


async def read(*parts: bytes) -> Call:
    """What is read of these bytes, which come one part a second, until the connection ends."""
    call, ticks = Call(), count(-1)
    response = Response(call, Request(b""), lambda: float(next(ticks)))
    for part in (HEAD + b"\r\n", *parts):
        response.received(part)
    response.lost(None)
    return call


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
async def test_counts_alone_bring_no_token(separators: tuple[str, str]) -> None:
    call = await read(event(USAGE, separators) + DONE)
    assert (list(call.event_s), call.ended_s) == ([], 1.0)
    assert (call.input_tokens, call.output_tokens) == (7, 3)


# A text that is held back (half a character, or a special token) is a token all the same: vLLM
# sends the event with an empty text.
@pytest.mark.parametrize(
    ("documents", "tokens"),
    [
        ([chat(role="assistant", content=""), chat(role="assistant")], 0),
        ([chat(role="assistant", content="a")], 1),
        ([chat(reasoning_content="hm"), chat(tool_calls=[{"index": 0}])], 2),
        ([completion(""), chat(content="")], 2),
        ([completion("", "stop"), chat("stop"), chat("stop", content="")], 0),
        ([completion("a", "length"), chat("length", content="a")], 2),
        ([{"choices": None}, {"choices": [{"delta": None, "finish_reason": "stop"}]}], 0),
        ([completion("a") | {"usage": None}], 1),
    ],
)
async def test_events_bring_a_token_unless_they_only_begin_or_end_a_sequence(
    documents: list[Any], tokens: int
) -> None:
    call = await read(*map(event, documents), DONE)
    assert (len(call.event_s), call.input_tokens) == (tokens, None)


async def test_end_without_a_text_brings_no_token_and_ends_the_sequence() -> None:
    call = await read(event(completion("a")), event(completion("", "stop")), event(USAGE), DONE)
    assert (list(call.event_s), call.ended_s) == ([0.0], 1.0)


async def test_error_in_a_stream_is_reported_by_its_code() -> None:
    error = {"error": {"message": "gone", "type": "engine_gone", "code": 502}}
    call = await read(event(completion("a")) + event(error) + DONE)
    assert (len(call.event_s), call.why) == (1, "error in the stream: 502")


@pytest.mark.parametrize(
    "data",
    [
        b"{", b"[]", b"1", b"\xff", b'{"choices":{}}', b'{"choices":[1]}',
        b'{"choices":[{"text":1}]}',
    ],
)  # fmt: skip
async def test_event_of_another_shape_is_an_error(data: bytes) -> None:
    call = await read(b"data: " + data + b"\n\n", DONE)
    assert call.why.startswith("error in the stream: an event is invalid: ")
    assert list(call.event_s) == []


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

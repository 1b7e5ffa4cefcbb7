"""Forwarding an engine's response to one client, and parsing it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.api.usage import MAX_PIECE_BYTES
from orch_sidecar.observability.record import Outcome
from orch_sidecar.wire.http1 import LAST_CHUNK, MAX_BUFFERED_BYTES
from tests.orch_sidecar import apis
from tests.orch_sidecar.answers import PLACES, cut
from tests.orch_sidecar.broadcasting import (
    STREAM_HEAD,
    chunk,
    json_answer,
)
from tests.orch_sidecar.relayed import Relayed
from tests.orch_sidecar.spoken import DONE, SPOKEN, Spoken, sse

CLOSING_HEAD = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def check(spoken: Spoken, relayed: Relayed) -> None:
    assert relayed.response.done.done()
    assert relayed.response.failure is None
    assert relayed.got[1] == spoken.body
    expected = Outcome.ENGINE_ERROR if spoken.failed else Outcome.OK
    assert relayed.response.outcome is expected
    assert relayed.response.answer.counts == spoken.counts


def framed(spoken: Spoken, chunks: list[bytes]) -> bytes:
    if not spoken.stream:
        return json_answer(spoken.body)
    return STREAM_HEAD + b"".join(chunk(each) for each in chunks if each) + LAST_CHUNK


@pytest.mark.parametrize("spoken", SPOKEN, ids=lambda spoken: spoken.name)
async def test_response_is_parsed_wherever_its_last_reads_are_cut(spoken: Spoken) -> None:
    """As vLLM writes it: one chunk per event and one for the end of the body, cut anywhere."""
    events = [each + b"\n\n" for each in spoken.body.split(b"\n\n")[:-1]]
    data = framed(spoken, events)
    head = len(data) - len(spoken.body) if not spoken.stream else len(STREAM_HEAD)
    for at in range(max(head, len(data) - 500), len(data)):
        check(spoken, Relayed(spoken.api, stream=spoken.stream).sends(data[:at], data[at:]))
    each_alone = [STREAM_HEAD, *map(chunk, events), LAST_CHUNK] if spoken.stream else [data]
    check(spoken, Relayed(spoken.api, stream=spoken.stream).sends(*each_alone))


@given(st.sampled_from(SPOKEN), PLACES, PLACES, st.booleans())
async def test_response_is_parsed_however_it_is_chunked_and_cut(
    spoken: Spoken, chunks: list[int], reads: list[int], http10: bool
) -> None:
    data = framed(spoken, cut(spoken.body, chunks))
    relayed = Relayed(spoken.api, stream=spoken.stream, http10=http10).sends(*cut(data, reads))
    check(spoken, relayed)


@given(st.sampled_from([spoken for spoken in SPOKEN if spoken.stream]), PLACES)
async def test_response_that_ends_with_its_connection_is_parsed(
    spoken: Spoken, reads: list[int]
) -> None:
    relayed = Relayed(spoken.api, http10=True).sends(CLOSING_HEAD, *cut(spoken.body, reads))
    check(spoken, relayed.closes())


async def test_large_events_and_responses_are_parsed_without_being_kept() -> None:
    long = "z" * (8 * MAX_BUFFERED_BYTES)
    event = sse(
        {"choices": [{"text": long}], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
    )
    for body in (event, event + DONE):
        relayed = Relayed()
        data = STREAM_HEAD + chunk(event) + (chunk(DONE) if body != event else b"") + LAST_CHUNK
        for at in range(0, len(data), 50_000):
            relayed.sends(data[at : at + 50_000])
            kept = relayed.response.answer
            assert len(kept._kept) + sum(map(len, kept.content)) <= 2 * MAX_BUFFERED_BYTES
        assert relayed.response.answer.counts == (5, 3, None, None)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 415, 422])
async def test_client_error_is_no_engine_error(status: int) -> None:
    relayed = Relayed().sends(json_answer(b"{}", b"%d No" % status))
    assert relayed.response.outcome is Outcome.CLIENT_ERROR


@pytest.mark.parametrize("status", [408, 429, 499, 500, 501, 503])
async def test_other_error_statuses_are_engine_errors(status: int) -> None:
    relayed = Relayed().sends(json_answer(b"{}", b"%d No" % status))
    assert relayed.response.outcome is Outcome.ENGINE_ERROR


async def test_garbage_after_an_event_leaves_it_incomplete() -> None:
    """Nothing of that read is forwarded, so the client has half an event."""
    relayed = Relayed().sends(STREAM_HEAD + chunk(b"data: x"), chunk(b"\n\n") + b"what?\r\n")
    assert relayed.response.failure is not None
    assert relayed.client.aborted
    assert b"error" not in relayed.client.data


async def test_garbage_after_a_large_chunk_leaves_it_open() -> None:
    size = 2 * MAX_BUFFERED_BYTES
    large = b"data: x\n\n" * (size // 9)
    data = STREAM_HEAD + chunk(large)
    relayed = Relayed().sends(
        data[: len(STREAM_HEAD) + 7 + 9 * 8000],
        data[len(STREAM_HEAD) + 7 + 9 * 8000 :] + b"what?\r\n",
    )
    assert relayed.response.failure is not None
    assert relayed.client.aborted
    assert b"error" not in relayed.client.data


@pytest.mark.parametrize(
    ("http10", "head", "end"),
    [(False, STREAM_HEAD, LAST_CHUNK), (True, STREAM_HEAD, DONE), (False, CLOSING_HEAD, DONE)],
)
async def test_response_fails_once_as_it_is_framed(http10: bool, head: bytes, end: bytes) -> None:
    """Its engine is lost, and before its handler runs the client cancels, or the sidecar ends."""
    event = sse({})
    relayed = Relayed(http10=http10).sends(head, chunk(event) if head is STREAM_HEAD else event)
    relayed.resets()
    data = relayed.client.data
    assert data.endswith(end)
    relayed.writer.fail(Refusal(Reason.CANCELLED, "cancelled"))
    assert relayed.client.data == data
    assert not relayed.client.aborted


@pytest.mark.parametrize("http10", [False, True])
@pytest.mark.parametrize(
    "spoken", [each for each in SPOKEN if each.stream], ids=lambda spoken: spoken.name
)
async def test_stream_is_complete_once_its_last_event_was_sent(
    spoken: Spoken, http10: bool
) -> None:
    """Its body has yet to end when its client cancels, or its engine is lost: no error follows."""
    *before, last = [each + b"\n\n" for each in spoken.body.split(b"\n\n")[:-1]]
    relayed = Relayed(spoken.api, http10=http10).sends(STREAM_HEAD, *map(chunk, before))
    relayed.sends(*cut(chunk(last), [*range(0, len(last), MAX_PIECE_BYTES + 1)])).closes()
    check(spoken, relayed)
    assert relayed.client.data.endswith(last if http10 else chunk(last) + LAST_CHUNK)
    assert not relayed.response.complete, "the engine has to confirm the end of its lease"
    data = relayed.client.data
    relayed.writer.fail(Refusal(Reason.CANCELLED, "cancelled"))
    assert relayed.client.data == data


async def test_large_last_event_leaves_its_chunk_open_until_that_has_ended() -> None:
    last = sse(
        {"type": "response.completed", "text": "x" * 2 * MAX_BUFFERED_BYTES}, "response.completed"
    )
    data = chunk(last)
    relayed = Relayed(apis.RESPONSES).sends(STREAM_HEAD, data[:-9], data[-9:-2]).closes()
    assert relayed.response.failure is not None
    assert relayed.client.aborted
    relayed = Relayed(apis.RESPONSES).sends(STREAM_HEAD, data[:-9], data[-9:]).closes()
    assert relayed.response.failure is None
    assert relayed.got[1] == last


async def test_stream_to_a_client_that_does_not_read_is_not_complete() -> None:
    relayed = Relayed().sends(STREAM_HEAD, chunk(sse({})))
    relayed.sends(chunk(DONE))
    relayed.writer.pause()
    relayed.writer.fail(Refusal(Reason.CLIENT_STALLED, "stalled"))
    assert relayed.response.failure is not None


STREAMS = [spoken for spoken in SPOKEN if spoken.stream and not spoken.failed]


@pytest.mark.parametrize("spoken", STREAMS, ids=lambda spoken: spoken.name)
async def test_last_token_is_the_last_event_with_generated_text(
    spoken: Spoken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usage, the end of the message and [DONE] come later, and are no tokens."""
    events = [each + b"\n\n" for each in spoken.body.split(b"\n\n")[:-1]]
    generated = [
        at
        for at, event in enumerate(events)
        if b'"choices":[{' in event or b"_block_delta" in event or b"_text.delta" in event
    ]
    relayed = Relayed(spoken.api).sends(STREAM_HEAD)
    for at, event in enumerate(events):
        monkeypatch.setattr(time, "monotonic_ns", lambda at=at: at)
        relayed.sends(chunk(event))
    relayed.sends(LAST_CHUNK)
    assert relayed.record.last_token == generated[-1]


async def test_response_that_is_not_streamed_has_no_last_token() -> None:
    answer = json_answer(b'{"choices":[{"text":"one"}]}')
    assert Relayed(stream=False).sends(answer).record.last_token is None

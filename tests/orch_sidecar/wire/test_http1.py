"""Framing rules, by example. Against a reference parser: test_http1_fuzz.py."""

from __future__ import annotations

import pytest

from orch_sidecar.wire.http1 import (
    LAST_CHUNK,
    MAX_BUFFERED_BYTES,
    MAX_HEAD_BYTES,
    MAX_TRAILER_BYTES,
    Body,
    ChunkedBody,
    FramingError,
    Head,
    body_of,
    parse_head,
)


def head_of(*lines: bytes, status_line: bytes = b"HTTP/1.1 200 OK") -> Head:
    parsed = parse_head(b"\r\n".join((status_line, *lines)) + b"\r\n\r\n")
    assert parsed is not None
    return parsed[0]


def forwarded(body: Body, *reads: bytes) -> list[bytes]:
    return [body.feed(read) for read in reads]


# Heads.


def test_head_is_parsed_with_the_offset_of_the_body() -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Type:  text/plain \r\ncontent-length: 5\r\n\r\nhello"
    parsed = parse_head(data)
    assert parsed is not None
    head, start = parsed
    assert data[start:] == b"hello"
    assert (head.status, head.reason, head.length, head.chunked) == (200, b"OK", 5, False)
    assert head.fields == ((b"content-type", b"text/plain"), (b"content-length", b"5"))
    assert head.keep_alive


@pytest.mark.parametrize(
    "status_line",
    [
        b"", b"HTTP/1.1", b"HTTP/1.1 20 OK", b"HTTP/1.1 2000 OK", b"HTTP/1.1 099 OK",
        b"HTTP/2.0 200 OK", b"HTTP/1.1  200 OK", b"http/1.1 200 OK", b"HTTP/1.1 200 O\nK",
        b"HTTP/1.1 200 O\x00K", b" HTTP/1.1 200 OK", b"\r\nHTTP/1.1 200 OK", b"GET / HTTP/1.1",
        b"HTTP/1.1 200 OK\r",
    ],
)  # fmt: skip
def test_invalid_status_lines_are_errors(status_line: bytes) -> None:
    with pytest.raises(FramingError, match="status line"):
        head_of(status_line=status_line)


@pytest.mark.parametrize(
    "field",
    [
        b"no colon", b": no name", b"space : before", b" folded: line", b"a: b\n", b"a: b\rc",
        b"a: b\nc: d", b"a: \x00", b"a\xe9: b", b"a(b): c", b"a: \x7f",
    ],
)  # fmt: skip
def test_invalid_fields_are_errors(field: bytes) -> None:
    with pytest.raises(FramingError, match="header field"):
        head_of(field)


@pytest.mark.parametrize("length", [b"", b"+5", b"-5", b"5,5", b"0x5", b"5 5", b"\xb2", b"9" * 19])
def test_content_length_must_be_a_plain_number(length: bytes) -> None:
    with pytest.raises(FramingError, match="content-length"):
        head_of(b"content-length: " + length)


def test_repeated_framing_fields_are_refused_even_if_equal() -> None:
    with pytest.raises(FramingError, match="repeated"):
        head_of(b"content-length: 5", b"content-length: 5")
    with pytest.raises(FramingError, match="transfer-encoding"):
        head_of(b"transfer-encoding: chunked", b"transfer-encoding: chunked")


def test_length_together_with_chunked_is_refused_in_either_order() -> None:
    fields = (b"content-length: 5", b"transfer-encoding: chunked")
    for order in (fields, fields[::-1]):
        with pytest.raises(FramingError, match="with content-length"):
            head_of(*order)


@pytest.mark.parametrize("coding", [b"gzip", b"gzip, chunked", b"identity", b"", b"chunked;a=b"])
def test_other_transfer_codings_are_refused(coding: bytes) -> None:
    with pytest.raises(FramingError, match="not supported"):
        head_of(b"transfer-encoding: " + coding)


def test_chunked_in_http_1_0_is_refused() -> None:
    with pytest.raises(FramingError, match=r"HTTP/1\.0"):
        head_of(b"transfer-encoding: chunked", status_line=b"HTTP/1.0 200 OK")


def test_connection_is_kept_only_by_http_1_1_without_close() -> None:
    assert head_of(b"connection: keep-alive").keep_alive
    assert not head_of(b"Connection: Close").keep_alive
    assert not head_of(b"connection: x, close").keep_alive
    assert not head_of(b"connection: close", b"connection: keep-alive").keep_alive
    assert not head_of(b"connection: keep-alive", status_line=b"HTTP/1.0 200 OK").keep_alive


@pytest.mark.parametrize("at_once", [True, False])
def test_head_beyond_its_bound_is_refused_however_it_arrives(at_once: bool) -> None:
    data = b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * (MAX_HEAD_BYTES // 6) + b"\r\n"
    with pytest.raises(FramingError, match="longer"):
        parse_head(data if at_once else data[:-1])


# Which body follows a head.


@pytest.mark.parametrize("status", [b"204", b"304"])
@pytest.mark.parametrize("field", [b"a: b", b"content-length: 5", b"transfer-encoding: chunked"])
def test_status_without_a_body_has_none_whatever_its_fields(status: bytes, field: bytes) -> None:
    body = body_of(head_of(field, status_line=b"HTTP/1.1 " + status), dechunk=False)
    assert body.done
    assert body.delimits_itself
    with pytest.raises(FramingError, match="after the end"):
        body.feed(b"x")


# Chunks.


def test_trailer_fields_are_checked_and_omitted() -> None:
    body = ChunkedBody()
    assert forwarded(body, b"1\r\na\r\n0\r\nA: b\r", b"\nC: d\r\n\r", b"\n") == [
        b"1\r\na\r\n",
        b"",
        LAST_CHUNK,
    ]
    assert body.done
    with pytest.raises(FramingError, match="trailer field"):
        ChunkedBody().feed(b"0\r\nno colon\r\n\r\n")


@pytest.mark.parametrize("at_once", [True, False])
def test_trailers_beyond_their_bound_are_refused_however_they_arrive(at_once: bool) -> None:
    data = b"0\r\n" + b"a: b\r\n" * (MAX_TRAILER_BYTES // 6 + 2) + b"\r\n"
    with pytest.raises(FramingError, match="longer than"):
        ChunkedBody().feed(data if at_once else data[:-1])


@pytest.mark.parametrize("at_once", [True, False])
def test_chunk_line_beyond_its_bound_is_refused_however_it_arrives(at_once: bool) -> None:
    data = b"1;" + b"a" * 2000 + b"\r\nx\r\n"
    with pytest.raises(FramingError, match="not a chunk size"):
        ChunkedBody().feed(data if at_once else data[:1500])


@pytest.mark.parametrize(
    "data",
    [
        b"x", b"5 \r\nhello\r\n", b"-1\r\n", b"+1\r\na\r\n", b"0x1\r\na\r\n", b"\r\n", b"\n",
        b"1\na\n", b"1\r\nab\r\n", b"1\r\na\n\n", b"1\r\naXY", b"1;\x00\r\na\r\n", b"1;a\nb\r\n",
        b"1\rX", b"1_0\r\n", b"f" * 16 + b"\r\n", b" 1\r\na\r\n", b"g", b"\xb2\r\n",
    ],
)  # fmt: skip
def test_ambiguous_chunks_are_refused(data: bytes) -> None:
    with pytest.raises(FramingError):
        ChunkedBody().feed(data)


def test_large_chunk_of_which_all_but_its_end_has_come_is_forwarded_once() -> None:
    """The first read ends within the CRLF; the next one has the rest of it, and more."""
    payload = b"a" * (2 * MAX_BUFFERED_BYTES)
    line = b"%x\r\n" % len(payload)
    for end in (b"", b"\r"):
        content: list[bytes] = []
        body = ChunkedBody(content)
        assert body.feed(line + payload + end) == line + payload
        assert body.within_chunk
        assert body.feed(b"\r\n"[len(end) :] + b"1\r\nb\r\n") == b"\r\n1\r\nb\r\n"
        assert not body.within_chunk
        assert b"".join(content) == payload + b"b"


def test_large_chunk_must_end_at_its_size() -> None:
    for end in (b"X", b"\rX", b"\n", b"XX", b"\r\nnext"):
        body = ChunkedBody()
        body.feed(b"%x\r\n" % (2 * MAX_BUFFERED_BYTES) + b"a" * (2 * MAX_BUFFERED_BYTES))
        with pytest.raises(FramingError, match=r"does not end|not a chunk size"):
            body.feed(end)
        assert body.within_chunk

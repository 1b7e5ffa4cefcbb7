"""Answers of an engine, as Hypothesis strategies: framed in every way, cut anywhere, mutated."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import strategies as st

from orch_sidecar.wire.http1 import MAX_BUFFERED_BYTES


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(edges)]


PLACES = st.lists(st.integers(0, 2**20), max_size=12)
FIELDS = st.lists(
    st.sampled_from(
        (
            b"Content-Type: text/event-stream",
            b"Date: Fri, 21 Nov 2025 03:00:00 GMT",
            b"X-Empty:",
            b"X-Odd: \xe9\t!",
            b"Connection: close",
            b"Connection: keep-alive",
            b"set-cookie: a=b",
        )
    ),
    max_size=4,
)
INTERIM = st.sampled_from(
    (b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nLink: </a>\r\n\r\n")
)
PAYLOAD = st.binary(min_size=1, max_size=40) | st.sampled_from(
    (b'data: {"a": 1}\n\n', b"data: [DONE]\n\n", b"0\r\n\r\n", b"\r\n", b"\r\n\r\n", b"5\r\nab")
)
SIZE_LINE = st.sampled_from((b"%x", b"%X", b"00%x", b"%x;a", b'%x;a="b;c"', b"%x;", b"%x;a=b;c=d"))
TRAILERS = st.sampled_from((b"", b"", b"A: b\r\n", b"Usage: 5\r\nX: \r\n"))


@dataclass(frozen=True)
class Answer:
    """A generated answer. `bounds`: where chunks end in the body that is passed on."""

    data: bytes
    payload: bytes
    chunked: bool = False
    closes: bool = False
    bounds: frozenset[int] = frozenset()


@st.composite
def chunked_answers(draw: st.DrawFn, payload: st.SearchStrategy[bytes] = PAYLOAD) -> Answer:
    chunks = draw(st.lists(st.tuples(payload, SIZE_LINE), max_size=6))
    body, bounds = b"", {0}
    for chunk, line in chunks:
        body += line % len(chunk) + b"\r\n" + chunk + b"\r\n"
        bounds.add(len(body))
    bounds.add(len(body) + 5)
    last = draw(st.sampled_from((b"0", b"000", b"0;a=b"))) + b"\r\n" + draw(TRAILERS) + b"\r\n"
    head = draw(INTERIM) + b"\r\n".join(
        (b"HTTP/1.1 200 OK", *draw(FIELDS), b"Transfer-Encoding: chunked")
    )
    data = head + b"\r\n\r\n" + body + last
    return Answer(data, b"".join(c for c, _ in chunks), chunked=True, bounds=frozenset(bounds))


@st.composite
def other_answers(draw: st.DrawFn) -> Answer:
    kind = draw(st.sampled_from(("length", "close", "none")))
    payload = b"" if kind == "none" else draw(st.binary(max_size=60))
    status = draw(st.sampled_from((b"1.1 204", b"1.1 304 Not"))) if kind == "none" else b"1.1 404 N"
    fields = draw(FIELDS)
    if kind == "length":
        fields.append(b"Content-Length: %d" % len(payload))
        status = draw(st.sampled_from((b"1.1 200 OK", b"1.0 200 OK", b"1.1 500")))
    data = draw(INTERIM) + b"\r\n".join((b"HTTP/" + status, *fields)) + b"\r\n\r\n" + payload
    return Answer(data, payload, closes=kind == "close")


LARGE = st.integers(MAX_BUFFERED_BYTES - 40, 3 * MAX_BUFFERED_BYTES).map(
    lambda n: (b"0\r\n\r\n" * n)[:n]
)


CHANGE = st.tuples(
    st.integers(0, 2**20),
    st.sampled_from(("replace", "insert", "delete", "double")),
    st.sampled_from([bytes([b]) for b in b"\r\n\x00 \t;:,0159aAfF-+x\xff"]) | st.binary(max_size=2),
)


def mutated(data: bytes, changes: list[tuple[int, str, bytes]]) -> bytes:
    for place, how, what in changes:
        at = place % (len(data) + 1)
        if how == "replace":
            data = data[:at] + what + data[at + len(what) :]
        elif how == "insert":
            data = data[:at] + what + data[at:]
        elif how == "delete":
            data = data[:at] + data[at + 1 :]
        else:
            data = data[:at] + data[at : at + 7] + data[at:]
    return data

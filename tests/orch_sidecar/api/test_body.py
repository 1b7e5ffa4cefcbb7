"""The fast parser of JSON against the strict one; forms are read as the engine reads them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from orch_sidecar.api import body as bodies
from orch_sidecar.api.body import InvalidBody, parse_form, parse_json
from orch_sidecar.api.endpoints import ENDPOINTS
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.refusal import Refusal
from tests.fuzz import examples

DEPTH = 8
NUMBERS = st.integers() | st.floats() | st.sampled_from([2**63, -(2**64), 10**40, 1e308, 5e-324])
TEXTS = st.text(max_size=8) | st.sampled_from(["\ud800", '":', '\\":', "a", "b", "\x7f", "\u2028"])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def outcome(body: bytes) -> str:
    """The document with the types of its values, or the refusal."""
    try:
        return repr(parse_json(body, DEPTH))
    except InvalidBody as invalid:
        return f"refused: {invalid}"


def strict(body: bytes) -> str:
    with patch.object(bodies, "parsed_fast", lambda body, max_depth: None):
        return outcome(body)


@settings(max_examples=examples(2000), deadline=None)
@given(
    st.dictionaries(TEXTS, VALUES, max_size=4),
    st.sampled_from([(",", ":"), (", ", ": "), (",", ":\t")]),
    st.booleans(),
    st.data(),
)
def test_any_body_is_read_as_by_the_strict_parser(
    document: dict[str, Any], separators: tuple[str, str], ascii_only: bool, data: st.DataObject
) -> None:
    text = json.dumps(document, separators=separators, ensure_ascii=ascii_only)
    body = text.encode("utf-8", "surrogatepass")
    assert outcome(body) == strict(body)
    # The same with a few bytes of another document in it: duplicates, and what is not JSON.
    at = data.draw(st.integers(0, len(body)))
    damaged = (
        body[:at]
        + data.draw(st.sampled_from([b'"a":1,', b",", b"}", b"1", b" ", b"\n\t"]))
        + body[at:]
    )
    assert outcome(damaged) == strict(damaged)


@pytest.mark.parametrize(
    "body",
    [
        b'{"n":1,"n":2}',
        b'{"\\u006e":1,"n":2}',
        b'{"a":"\\":1,\\"","a":""}',
        b'{"n":1e400}',
        b'{"n":NaN}',
        b'{"n":1}x',
        b'{"n":"\xff"}',
        b"[1]",
        b"",
        b'\xef\xbb\xbf{"n":1}',
        '{"n":1}'.encode("utf-16"),
        b'{"a":' + b"[" * DEPTH + b"]" * DEPTH + b"}",
        b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_bodies_that_are_no_plain_objects_are_left_to_the_strict_parser(body: bytes) -> None:
    assert bodies.parsed_fast(body, DEPTH) is None or body.count(b"[") == DEPTH
    assert outcome(body) == strict(body)


def test_below_the_top_level_the_last_of_duplicates_counts() -> None:
    body = b'{"a":{"b":1,"b":2}}'
    assert bodies.parsed_fast(body, DEPTH) == {"a": {"b": 2}}
    assert outcome(body) == strict(body)


@pytest.mark.parametrize(
    "document",
    [
        {"model": "m", "messages": [{"role": "user", "content": 'ü: "x"\n'}], "n": 2, "top_p": 0.9},
        {"prompt": [1, 2**53, -1], "stream": True, "seed": None, "temperature": 0.001},
    ],
)
def test_bodies_of_the_usual_clients_take_the_fast_parser(document: dict[str, Any]) -> None:
    body = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    assert bodies.parsed_fast(body, DEPTH) == document
    assert bodies.parsed_fast(json.dumps(document, ensure_ascii=False).encode(), DEPTH) == document


def test_integer_of_thousands_of_digits_is_refused_without_a_word_about_python() -> None:
    with pytest.raises(InvalidBody) as caught:
        parse_json(b'{"n": %b}' % (b"1" * 5000), 64)
    assert "5000 digits" in caught.value.refusal.message
    assert "sys." not in caught.value.refusal.message


TYPE = "multipart/form-data; boundary=b"
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n'
END = b"--b--\r\n"


def text(name: str, value: str) -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()


def read(body: bytes, ctx_max: int | None = None) -> GenerationRequest | Refusal:
    return ENDPOINTS["/v1/audio/transcriptions"].read_form(body, TYPE, ctx_max)


def test_texts_are_read_and_files_are_not() -> None:
    body = FILE + text("model", "tiny ä") + text("timestamp_granularities[]", "word")
    assert parse_form(body + text("empty", "") + END, TYPE) == {"model": "tiny ä", "empty": ""}


def test_recording_costs_one_sequence_and_its_prompt_fits_the_context() -> None:
    request = read(FILE + text("model", "tiny") + text("stream", "True") + END, 448)
    assert isinstance(request, GenerationRequest)
    assert (request.cost, request.stream, request.model) == (1, True, "tiny")
    assert (request.max_tokens, request.prompt_tokens) == (None, 400)
    unknown = read(FILE + END)  # the length of the context
    assert isinstance(unknown, GenerationRequest)
    assert unknown.prompt_tokens == 400
    small = read(FILE + END, 100)
    assert isinstance(small, GenerationRequest)
    assert (small.stream, small.model, small.prompt_tokens) == (False, "", 100)


@pytest.mark.parametrize("value", ["true", "YES", "1", "on"])
def test_beam_search_is_refused(value: str) -> None:
    refusal = read(FILE + text("use_beam_search", value) + END)
    assert isinstance(refusal, Refusal)
    assert "changing numbers of sequences" in refusal.message


@pytest.mark.parametrize("value", ["false", "0", "", "No"])
def test_no_beam_search_is_not(value: str) -> None:
    assert isinstance(read(FILE + text("use_beam_search", value) + END), GenerationRequest)


def test_boolean_that_is_none_names_its_value() -> None:
    refusal = read(FILE + text("stream", "maybe") + END)
    assert isinstance(refusal, Refusal)
    assert refusal.message == 'stream must be true or false, not "maybe"'


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "does not begin with the boundary"),
        (b"\r\n" + FILE + END, "does not begin with the boundary"),
        (FILE, "has a part without an end"),
        (FILE.replace(b"--b\r\n", b"--b \r\n") + END, "has a part without an end"),
        (FILE + text("a", "1").replace(b"--b", b"--bc") + END, "has a part without an end"),
        (text("model", "a") + text("model", "b") + END, "'model' must not occur more than once"),
        (text("a", "1").replace(b'"a"', b"a") + END, "has a part without a plain name"),
        (text("a", "1").replace(b'"a"', b'"\\"a"') + END, "has a part without a plain name"),
        (text("a", "1").replace(b'"a"', b'"a"; name="b"') + END, "has a part without a plain name"),
        (text("a", "1").replace(b"\r\n\r\n", b"\r\nX: y\r\n\r\n") + END, "without a plain name"),
        (text("a", "ä").replace("ä".encode(), b"\xe4") + END, "not UTF-8"),
        (text("a", "1" * (1 << 21)) + END, "'a' is too long for a text"),
        (b"".join(text(f"n{at}", "") for at in range(65)) + END, "has more than 64 parts"),
    ],
)
def test_form_that_could_be_read_in_two_ways_is_refused(body: bytes, says: str) -> None:
    refusal = read(body)
    assert isinstance(refusal, Refusal)
    assert says in refusal.message


@pytest.mark.parametrize(
    "content_type",
    [
        "", "application/json", "multipart/form-data", "multipart/form-data; boundary=",
        f"{TYPE}; charset=utf-16", f"{TYPE}, text/html", "multipart/mixed; boundary=b",
        "multipart/form-data; charset=utf-16; boundary=b",
    ],
)  # fmt: skip
def test_any_other_type_is_refused_by_name(content_type: str) -> None:
    with pytest.raises(InvalidBody) as raised:
        parse_form(FILE + END, content_type)
    assert repr(content_type) in raised.value.refusal.message


async def _engines(body: bytes) -> dict[str, Any] | None:
    """What the engine's parser reads: its texts by name, where a file is one of None."""

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    try:
        items = await MultiPartParser(Headers({"content-type": TYPE}), stream()).parse()
    except MultiPartException:
        return None
    found: dict[str, Any] = {}
    for name, value in items.multi_items():
        assert name.endswith("[]") or name not in found
        found[name] = None if isinstance(value, UploadFile) else value
        if isinstance(value, UploadFile):
            value.file.close()
    return found


_PIECES = st.sampled_from(
    [
        FILE, END, text("use_beam_search", "true"), text("stream", "1"), b"--b", b"--b--", b"--",
        b"\r\n", b"\r\n\r\n", b"\r", b"\n", b" ", b'"', b"\\", b";", b":", b"b", b"\t",
        b'name="use_beam_search"', b"Content-Disposition: form-data", b"Content-Type: a",
        b'; filename="', b"content-disposition: form-data; ", "ä".encode(),
    ]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=12), st.lists(_PIECES, max_size=3))
def test_form_that_is_accepted_is_the_one_that_the_engine_reads(
    pieces: list[bytes], first: list[bytes]
) -> None:
    body = b"".join([*first, FILE, *pieces, END])
    try:
        fields = parse_form(body, TYPE)
    except InvalidBody:
        return
    read = asyncio.run(_engines(body))
    if read is not None:  # else the engine refuses it
        texts = {name: value for name, value in read.items() if value is not None}
        assert fields == {name: value for name, value in texts.items() if not name.endswith("[]")}

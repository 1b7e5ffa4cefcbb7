"""Forms are read as the engine reads them, or are rejected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from orch_sidecar.api import form
from orch_sidecar.api.endpoints import ENDPOINTS
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.json_body import InvalidBody
from orch_sidecar.api.refusal import Refusal

TYPE = "multipart/form-data; boundary=b"
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n'
END = b"--b--\r\n"


def text(name: str, value: str) -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()


def read(body: bytes, ctx_max: int | None = None) -> GenerationRequest | Refusal:
    return ENDPOINTS["/v1/audio/transcriptions"].read_form(body, TYPE, ctx_max)


def test_texts_are_read_and_files_are_not() -> None:
    body = FILE + text("model", "tiny ä") + text("timestamp_granularities[]", "word")
    assert form.parse(body + text("empty", "") + END, TYPE) == {"model": "tiny ä", "empty": ""}


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
        form.parse(FILE + END, content_type)
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
        fields = form.parse(body, TYPE)
    except InvalidBody:
        return
    read = asyncio.run(_engines(body))
    if read is not None:  # else the engine refuses it
        texts = {name: value for name, value in read.items() if value is not None}
        assert fields == {name: value for name, value in texts.items() if not name.endswith("[]")}

"""Response ids are found once and replaced everywhere, but nowhere else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.coalescing.broadcast import ResponseId

ID = "f00"


def renamed(piece: bytes, name: str, found: ResponseId | None = None) -> bytes:
    response_id = found or ResponseId(ID)
    texts = response_id.split(piece)
    return response_id.field_of(name).join(texts)


@pytest.mark.parametrize("before", ["chatcmpl-", "cmpl-", ""])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_id_is_replaced_in_any_json_spelling(before: str, separators: tuple[str, str]) -> None:
    def piece(name: str) -> bytes:
        return json.dumps({"a": 1, "id": before + name, "b": 2}, separators=separators).encode()

    assert renamed(piece(ID) * 2, "longer-id") == piece("longer-id") * 2


@pytest.mark.parametrize(
    "piece",
    [
        b"",
        b'{"id":"chatcmpl-f00d"}',
        b'{"id":"chatcmpl-f00',
        b'{"id":"chatcmpl-other"}',
        b'{"content":"chatcmpl-f00"}',
        b'{"request_id":"chatcmpl-f00"}',
        b'{"content":"\\"id\\":\\"chatcmpl-f00\\""}',
        b'{"id":"' + b"a" * 40 + b'-f00"}',
    ],
)
def test_other_text_is_unchanged(piece: bytes) -> None:
    assert renamed(piece, "mine") == piece


def test_id_is_found_after_something_that_looks_like_it() -> None:
    piece = b'{"user":"cmpl-f00","id":"cmpl-f00"}'
    assert renamed(piece, "mine") == b'{"user":"cmpl-f00","id":"cmpl-mine"}'


def test_id_is_known_from_the_first_piece_that_has_it() -> None:
    response_id = ResponseId(ID)
    response_id.split(b": keep-alive\n\n")
    assert not response_id.is_known
    response_id.split(b'{"id":"cmpl-f00"}')
    assert response_id.is_known
    assert renamed(b"none here", "mine", response_id) == b"none here"


@given(st.text(), st.text(max_size=5))
def test_generated_text_is_never_mistaken_for_the_id(text: str, around: str) -> None:
    looks = f'{around}"id":"chatcmpl-{ID}"{around}'

    def piece(name: str) -> bytes:
        document = {"id": f"chatcmpl-{name}", "text": text + looks}
        return json.dumps(document, separators=(",", ":")).encode()

    assert renamed(piece(ID), "mine") == piece("mine")

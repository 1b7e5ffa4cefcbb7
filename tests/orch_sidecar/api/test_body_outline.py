"""The outline of a large body is read like the body itself, and quickly."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orch_sidecar.api import body_outline as outline
from orch_sidecar.api.body import InvalidBody, parse_json
from orch_sidecar.api.body_outline import FIRST_SLICE_BYTES, LARGE_BYTES, SLICE_BYTES, Outline
from orch_sidecar.api.endpoints import Endpoint
from orch_sidecar.api.generation import GenerationRequest
from orch_sidecar.api.refusal import Refusal
from tests.orch_sidecar import apis

MIB = 2**20


def outlined(body: bytes, cut: int | None = None) -> bytes:
    """The outline, read in slices of `cut` bytes."""
    made, cut = Outline(), cut or len(body)
    for piece in (body[i : i + cut] for i in range(0, len(body), cut)):
        at = 0
        while at < len(piece):
            at = made.feed(piece, at)
    return made.result()


def read_outlined(body: bytes, api: Endpoint = apis.COMPLETIONS) -> GenerationRequest | Refusal:
    try:
        return api.read(outlined(body), 64, None, outlined=True)
    except InvalidBody as unreadable:
        return unreadable.refusal


TEXT = st.text(st.sampled_from('ab"\\{}[]:,\n\té中\U0001f600\x7f'), max_size=8)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)
FIELDS = st.dictionaries(TEXT | st.sampled_from(("n", "prompt", "model", "stream")), VALUE)


def shape(value: Any, *, top: bool = True) -> Any:
    """A document as its outline has it: below the top no strings, and so one name per object."""
    if isinstance(value, dict):
        if top:
            return {key: shape(each, top=False) for key, each in value.items()}
        return {"": shape(list(value.values())[-1], top=False)} if value else {}
    if isinstance(value, list):
        return [shape(each, top=False) for each in value]
    return value


def bare(value: Any) -> Any:
    """Without what strings below the top level hold."""
    if isinstance(value, list):
        return ["" if isinstance(each, str) else bare(each) for each in value]
    if isinstance(value, dict):
        return {key: "" if isinstance(each, str) else bare(each) for key, each in value.items()}
    return value


@given(FIELDS, st.integers(1, 9), st.booleans(), st.sampled_from((None, 1, 4)))
@example({"n": "\\"}, 1, True, None)
@example({"a": ['\\"', '"']}, 1, False, None)
def test_outline_has_the_structure_and_the_top_level_wherever_slices_end(
    fields: dict[str, Any], cut: int, ascii_only: bool, indent: int | None
) -> None:
    body = json.dumps(fields, ensure_ascii=ascii_only, indent=indent).encode()
    document = parse_json(outlined(body, cut), 64, outlined=True)
    expected = shape(json.loads(body))
    assert {key: bare(value) for key, value in expected.items()} == document


@given(TEXT, st.booleans(), st.integers(0, 24), st.integers(0, 2))
@example("\\", False, 1, 1)
@example('\\"', True, 1, 1)
def test_string_in_which_a_slice_ends_is_read_like_any_other(
    text: str, top: bool, before_end: int, more: int
) -> None:
    content = json.dumps(text, ensure_ascii=False)[1:-1].encode() * 10**more
    begin = b'{"a": 1, "b": "' if top else b'{"a": {"b": "'
    spaces = b" " * (FIRST_SLICE_BYTES - len(begin) - min(before_end, len(content)))
    body = spaces + begin + content + (b'"}' if top else b'", "": ["c", 2]}, "d": "e"}')
    assert parse_json(outlined(body), 64, outlined=True) == parse_json(
        outlined(body, 7), 64, outlined=True
    )


BYTES = st.lists(
    st.sampled_from(
        (b'"', b"\\", b"{", b"}", b"[", b"]", b":", b",", b"n", b'"n"', b'"prompt"', b"1", b" ")
    ),
    max_size=16,
).map(b"".join)


@given(BYTES, st.integers(1, 5))
def test_outline_of_invalid_json_costs_the_same(inner: bytes, cut: int) -> None:
    """An engine takes nothing that is no JSON; of what is, both must read the same."""
    body = b'{"prompt": "a", "x": ' + inner + b"}"
    whole = apis.COMPLETIONS.read(body, 64, None)
    if isinstance(whole, Refusal):
        return
    assert apis.COMPLETIONS.read(outlined(body, cut), 64, None, outlined=True) == whole


def test_string_of_eight_mebibytes_of_source_code_is_accepted() -> None:
    code = 'def f(x):\n    return {"a": [x, {}], "b": x["c"]}\n' * (8 * MIB // 49)
    for body, api in (
        ({"prompt": code, "n": 2}, apis.COMPLETIONS),
        ({"messages": [{"role": "user", "content": code}], "n": 2}, apis.CHAT),
    ):
        generation = read_outlined(json.dumps(body).encode(), api)
        assert isinstance(generation, GenerationRequest)
        assert generation.cost == 2


def test_prompt_of_131072_token_ids_is_accepted() -> None:
    body = json.dumps({"prompt": list(range(131_072))}).encode()
    generation = read_outlined(body)
    assert isinstance(generation, GenerationRequest)
    assert (generation.cost, generation.prompt_tokens) == (1, 131_072)


@pytest.mark.parametrize("name", ["n", "\\u006e"])
def test_field_behind_large_ones_is_found_in_any_spelling(name: str) -> None:
    body = b'{"prompt": "%b", "x%b": [1, "%b"], "%b": 3}' % (
        *(b"x" * 2 * LARGE_BYTES,) * 3,
        name.encode(),
    )
    generation = read_outlined(body)
    assert isinstance(generation, GenerationRequest)
    assert generation.cost == 3


def test_duplicate_field_is_rejected() -> None:
    refusal = read_outlined(b'{"n": 1, "prompt": "%b", "n": 2}' % (b"x" * 2 * LARGE_BYTES))
    assert isinstance(refusal, Refusal)
    assert refusal.param == "n"


def test_two_fields_with_long_names_are_not_the_same() -> None:
    long = b"x" * 2000
    generation = read_outlined(b'{"prompt": "a", "%ba": 1, "%bb": 2}' % (long, long))
    assert isinstance(generation, GenerationRequest)


def test_error_contains_no_position_in_the_outline() -> None:
    refusal = read_outlined(b'{"prompt": "%b", }' % (b"x" * LARGE_BYTES))
    assert isinstance(refusal, Refusal)
    assert "is not valid JSON" in refusal.message
    assert "char" not in refusal.message


@pytest.mark.parametrize("number", [b"0.5", b"5e-10", b"5E+10", b"0.55e-10", b"-1.5E7"])
def test_numbers_that_are_not_integers_are_limited_in_any_notation(number: bytes) -> None:
    others = b"true,false,null,12," * 20_000

    def read_with(count: int) -> GenerationRequest | Refusal:
        return read_outlined(b'{"prompt": "x", "x": [%b1]}' % (others + (number + b",") * count))

    # One that two slices share may be counted as two, or not at all.
    few = outline.MAX_FRACTIONS // 100
    assert isinstance(read_with(outline.MAX_FRACTIONS - few), GenerationRequest)
    refusal = read_with(outline.MAX_FRACTIONS + few)
    assert isinstance(refusal, Refusal)
    assert "more than 20000 fractions or exponents" in refusal.message


@pytest.mark.parametrize("cut", [7, 50, None])
def test_numbers_have_at_most_so_many_digits_wherever_slices_end(cut: int | None) -> None:
    body = b'{"prompt": "%b", "x": [%b]}' % (b"9" * 99, b"9" * outline.MAX_DIGITS)
    assert parse_json(outlined(body, cut), 64, outlined=True)["x"] == [10**outline.MAX_DIGITS - 1]
    with pytest.raises(InvalidBody, match=f"not have more than {outline.MAX_DIGITS} digits"):
        outlined(body.replace(b"]", b"9]"), cut)


def test_other_encoding_is_rejected() -> None:
    refusal = read_outlined(json.dumps({"prompt": "x"}).encode("utf-16"))
    assert isinstance(refusal, Refusal)
    assert "utf-16" in refusal.message
    assert isinstance(
        read_outlined(json.dumps({"prompt": "x"}).encode("utf-8-sig")), GenerationRequest
    )


def repeated(
    piece: bytes, before: bytes = b'{"prompt": "x", "x": [', after: bytes = b"1]}"
) -> bytes:
    """A body of 15 MiB that is mostly this."""
    return before + piece * (15 * MIB // len(piece)) + after


WORST = {
    "logit_bias": b'{"prompt":"x","logit_bias":{%b}}'
    % b",".join(b'"%d":1' % number for number in range(1_300_000)),
    "most members": b'{"prompt":"x","logit_bias":{%b}}'
    % b",".join(b'"%d":1' % number for number in range(outline.MAX_MEMBERS - 2)),
    "escapes": repeated(b"\\n", b'{"prompt": "', b'"}'),
    "escaped quotes": repeated(b'\\"', b'{"prompt": "', b'"}'),
    "base64": repeated(b"QUJD", b'{"prompt": "', b'"}'),
    "brackets": repeated(b"["),
    "empty lists": repeated(b"[],"),
    "most lists": json.dumps({"prompt": [[1]] * (outline.MAX_CONTAINERS - 2)}).encode(),
    "token ids": repeated(b"123456,"),
    "most token ids": json.dumps({"prompt": list(range(outline.MAX_ITEMS - 2))}).encode(),
    "large integers": repeated(b"9" * outline.MAX_DIGITS + b","),
    "huge integers": repeated(b"9" * 4300 + b","),
    "fractions": repeated(b"0.123456789,"),
    "exponents": repeated(b"1234567890123456789e-300,"),
    "most fractions": json.dumps({"x": [1 / 3e9] * (outline.MAX_FRACTIONS - 1)}).encode(),
    "small strings": repeated(b'"a",'),
    "most strings": json.dumps({"prompt": ["ab"] * (outline.MAX_STRINGS - 2)}).encode(),
    "quotes": repeated(b'"'),
    "fields": b'{"prompt": "x", %b}' % b",".join(b'"%d":1' % n for n in range(1_000_000)),
    "spaces": repeated(b" "),
    "most objects": json.dumps(
        {
            "prompt": "x",
            "tools": [{"name": n, "type": n} for n in range(outline.MAX_MEMBERS // 2 - 2)],
        }
    ).encode(),
}


@pytest.fixture(scope="module")
def collector_of_a_sidecar() -> Iterator[None]:
    """Of this process it would look at everything that a test run has made."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("name", WORST)
def test_no_body_blocks_the_event_loop_for_long(name: str, collector_of_a_sidecar: None) -> None:
    """In processor time, which a busy machine does not add to."""
    body = WORST[name]
    made, longest_s, outcome = Outline(), 0.0, ""
    try:
        for piece in (body[i : i + SLICE_BYTES] for i in range(0, len(body), SLICE_BYTES)):
            begin = time.thread_time()
            made.feed(piece)
            longest_s = max(longest_s, time.thread_time() - begin)
    except InvalidBody as unreadable:
        outcome = unreadable.refusal.message
    begin = time.thread_time()
    if not outcome:
        apis.COMPLETIONS.read(made.result(), 64, None, outlined=True)
    longest_s = max(longest_s, time.thread_time() - begin)
    assert longest_s < 0.05, outcome
    assert len(outcome) < 200

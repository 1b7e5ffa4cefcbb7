"""The salt of the prefix cache: who has the same one, and how it gets into a body."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orch_sidecar.api import generation
from orch_sidecar.api.body import InvalidBody, parse_json
from orch_sidecar.api.cache_salt import CacheSalt, CacheSalts
from orch_sidecar.api.refusal import Refusal
from tests.fuzz import examples

SALT = CacheSalts(b"s" * 32).of("alice", None)


def salted(body: bytes, salt: CacheSalt = SALT, *, has_own: bool) -> bytes:
    """The body as the engine gets it."""
    edited = salt.into(body, has_own=has_own)
    assert not isinstance(edited, Refusal)
    rest, inserted = edited
    return rest[:1] + inserted + rest[1:]


names = st.text() | st.sampled_from(["cache_salt", 'cache_salt"', "\\cache_salt", "cache_salt:"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(names, inner),
    max_leaves=12,
)
others = st.dictionaries(names.filter(lambda name: name != "cache_salt"), values, max_size=5)
own_salts = st.none() | st.text()
indents = st.none() | st.integers(0, 2)
spaces = st.text(" \t\r\n", max_size=3)


def read(body: bytes) -> Any:
    """Reads a body as vLLM does."""
    return json.loads(body)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, bool]:
    """An object as a client may write it, and whether it has a salt of its own."""
    members = [
        (json.dumps(name, ensure_ascii=draw(st.booleans())), value)
        for name, value in draw(others).items()
    ]
    has_own = draw(st.booleans())
    if has_own:
        name = draw(st.sampled_from(['"cache_salt"', '"cache\\u005fsalt"', '"\\u0063ache_salt"']))
        at = draw(st.integers(0, len(members)))
        members.insert(at, (name, draw(own_salts)))

    def text(name: str, value: Any) -> str:
        written = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(indents))
        return f"{draw(spaces)}{name}{draw(spaces)}:{draw(spaces)}{written}{draw(spaces)}"

    inside = ",".join(text(*member) for member in members) or draw(spaces)
    whole = f"{draw(spaces)}{{{inside}}}{draw(spaces)}"
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32-le"]))
    return whole.encode(encoding, "surrogatepass"), has_own


@settings(max_examples=examples(500))
@given(bodies())
def test_edited_body_differs_in_the_salt_alone(made: tuple[bytes, bool]) -> None:
    body, has_own = made
    before, after = read(body), read(salted(body, has_own=has_own))
    salt = after.pop("cache_salt")
    assert ("cache_salt" in before) == has_own
    own = before.pop("cache_salt", None)
    assert repr(after) == repr(before)  # not a number is equal to itself there
    assert re.fullmatch(r"[\w-]{43}", salt), "vLLM rejects long ones, and some characters"
    assert (salt == read(salted(b"{}", has_own=False))["cache_salt"]) == (own is None)


@pytest.mark.parametrize("body", [b'{"a":1}', b'{"a": [1, 2]}', b'{"":{}}'])
def test_usual_body_is_not_copied(body: bytes) -> None:
    edited = SALT.into(body, has_own=False)
    assert not isinstance(edited, Refusal)
    assert edited[0] is body
    assert read(salted(body, has_own=False)).keys() == {"cache_salt", *read(body)}


def test_salt_of_a_very_large_body_comes_first() -> None:
    text = b'"x":"' + b"x" * 2**20 + b'"'
    assert isinstance(SALT.into(b'{%b,"cache_salt":"a"}' % text, has_own=True), Refusal)
    for body in (b'{"cache_salt":"a",%b}' % text, b'{"cache_salt" : null , %b}' % text):
        assert read(salted(body, has_own=True)).keys() == {"cache_salt", "x"}


def salt_of(key: str, group: str | None = None, own: str | None = None, secret: int = 0) -> str:
    salt = CacheSalts(bytes([secret]) * 32).of(key, group)
    body = json.dumps({"cache_salt": own}).encode()
    found: str = read(salted(body, salt, has_own=True))["cache_salt"]
    return found


def test_only_the_same_group_of_the_same_installation_has_the_same_salt() -> None:
    alone = salt_of("alice")
    assert salt_of("alice") == alone
    shared = salt_of("alice", "team")
    assert salt_of("bob", "team") == shared
    own = salt_of("alice", own="x")
    assert salt_of("bob", "team", "x") == salt_of("alice", "team", "x")
    everything = {
        alone, shared, own, salt_of("bob"), salt_of("team"), salt_of("alice", "other"),
        salt_of("bob", "team", "x"), salt_of("bob", own="x"), salt_of("alice", own="y"),
        salt_of("alice", own=alone), salt_of("alice", secret=1),
    }  # fmt: skip
    assert len(everything) == 11


def test_secret_of_a_client_is_not_in_its_salt() -> None:
    assert "hunter2" not in salted(b'{"cache_salt":"hunter2"}', has_own=True).decode()


@pytest.mark.parametrize("value", ["1", "true", "[]", '{"a":1}'])
def test_salt_that_is_no_text_is_refused(value: str) -> None:
    document = parse_json(b'{"messages":[],"cache_salt":%b}' % value.encode(), 64)
    with pytest.raises(InvalidBody, match="cache_salt must be a string"):
        generation.chat(document, None)


def test_salt_of_a_request_is_read() -> None:
    def read_salt(body: bytes) -> str | None:
        return generation.chat(parse_json(body, 64), None).cache_salt

    assert read_salt(b'{"messages":[{"cache_salt":"x"}]}') is None
    assert read_salt(b'{"messages":[],"cache_salt":null}') == ""
    assert read_salt(b'{"messages":[],"cache\\u005fsalt":"mine"}') == "mine"

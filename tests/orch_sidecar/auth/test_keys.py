"""What a file of keys says, and whose key is presented."""

from __future__ import annotations

import hashlib
import re

import pytest
from multidict import CIMultiDict

from orch_sidecar.auth import keys
from orch_sidecar.auth.keys import (
    ApiKey,
    InvalidKeyFile,
    Keys,
    differences,
    entry_of,
    new_key,
    parse,
)

ALICE = new_key(b"a" * 32)
BOB = new_key(b"b" * 32)


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_file_says_whose_key_it_is_and_what_its_bearer_may_do() -> None:
    text = entry_of(ALICE, "alice") + entry_of(BOB, "bob", bulk=True, concurrency=3)
    known = parse(text)
    assert len(known) == 2
    assert known.of(ALICE.encode()) == ApiKey("alice", bytes.fromhex(digest(ALICE)))
    assert known.of(BOB.encode()) == ApiKey("bob", bytes.fromhex(digest(BOB)), True, 3)


@pytest.mark.parametrize("key", ["", ALICE[:-1], ALICE + " ", ALICE.upper(), digest(ALICE)])
def test_key_that_is_not_whole_is_nobodys(key: str) -> None:
    assert parse(entry_of(ALICE, "alice")).of(key.encode()) is None


def test_key_is_256_bits_of_chance_behind_a_prefix() -> None:
    assert re.fullmatch(r"orch-[A-Za-z0-9_-]{43}", ALICE)
    assert ALICE != BOB
    assert len(ALICE) < keys.MAX_KEY_BYTES
    with pytest.raises(AssertionError):
        new_key(b"too little")


@pytest.mark.parametrize("name", ["true", "123", "1e3", "null", "a.b@c-d"])
def test_entry_with_a_name_that_yaml_could_misread_is_read_as_it_was_meant(name: str) -> None:
    [entry] = parse(entry_of(ALICE, name))
    assert entry.name == name


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no key"),
        ("# nothing\n", "holds no key"),
        ("[]", "holds no key"),
        ("null", "holds no key"),
        ("alice: x", "must be a list"),
        ("alice", "must be a list"),
        ("- alice", "entry 1: must have fields"),
        ("- {name: [}", "is no YAML: line 1, column"),
        ("- !!python/object/apply:os.getcwd []", "is no YAML: line 1, column"),
        ("- \x00", "is no YAML"),
        ("- {name: 2024-99-99}", "is no YAML"),
    ],
)
def test_file_that_is_no_list_of_entries_is_refused(text: str, told: str) -> None:
    with pytest.raises(InvalidKeyFile, match=re.escape(told)):
        parse(text)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("name: alice", "entry 2: sha256: (absent): must be 64"),
        ("sha256: HASH", "entry 2: name: (absent): "),
        ("name: alice, sha256: abc", "entry 2: sha256: (not shown): must be 64"),
        (f"name: alice, sha256: {'F' * 64}", "entry 2: sha256: (not shown): must be 64"),
        (f"name: alice, sha256: {ALICE}", "entry 2: sha256: (not shown): must be 64"),
        (f"name: alice, sha256: 0x{'1' * 64}", "entry 2: sha256: (not shown): must be 64"),
        (f"name: alice, sha256: HASH, key: {ALICE}", "entry 2: key: (not shown): Extra"),
        (f"name: alice, sha256: HASH, {ALICE}: 1", "entry 2: a field (not shown): (not shown)"),
        ("name: 12, sha256: HASH", "entry 2: name: 12: "),
        ("name: '', sha256: HASH", "entry 2: name: '': "),
        ("name: 'a b', sha256: HASH", "entry 2: name: 'a b': "),
        (f"name: '{ALICE} ', sha256: HASH", "entry 2: name: "),
        (f"name: {'a' * 64}, sha256: HASH", "entry 2: name: "),
        ("name: alice, sha256: HASH, class: interactive", "entry 2: class: 'interactive': "),
        ("name: alice, sha256: HASH, concurrency: 0", "entry 2: concurrency: 0: "),
        ("name: alice, sha256: HASH, concurrency: 1.5", "entry 2: concurrency: 1.5: "),
        ("name: alice, sha256: HASH, concurrency: true", "entry 2: concurrency: True: "),
        ("name: alice, sha256: HASH, concurrency: '3'", "entry 2: concurrency: '3': "),
        ("name: bob, sha256: HASH", "the name 'bob' is given twice"),
        (f"name: alice, sha256: {digest(BOB)}", "the sha256 of 'bob' is given twice"),
        ("name: alice, sha256: HASH, sha256: HASH", "line 3: a field is given twice"),
    ],
)
def test_wrong_entry_is_refused_by_number_field_and_rule_without_a_key(
    fields: str, told: str
) -> None:
    text = entry_of(BOB, "bob") + "- {" + fields.replace("HASH", digest(ALICE)) + "}\n"
    with pytest.raises(InvalidKeyFile) as wrong:
        parse(text)
    assert str(wrong.value).startswith(told)
    assert ALICE[:30] not in str(wrong.value)
    assert wrong.value.__cause__ is None, "a traceback would show what pydantic was given"


def test_entry_that_the_file_would_not_take_is_not_made() -> None:
    with pytest.raises(InvalidKeyFile, match="name"):
        entry_of(ALICE, "a b")
    with pytest.raises(InvalidKeyFile, match="concurrency"):
        entry_of(ALICE, "alice", concurrency=0)


@pytest.mark.parametrize(
    ("headers", "value", "key"),
    [
        ([], None, None),
        ([("Authorization", "Bearer a")], "Bearer a", "a"),
        ([("authorization", "bearer  a ")], "bearer  a ", "a"),
        ([("x-api-key", "a")], "a", "a"),
        ([("x-api-key", "b"), ("Authorization", "Bearer a")], "Bearer a", "a"),
        ([("Authorization", "Basic a")], "Basic a", "Basic a"),
        ([("Authorization", "Bearer")], "Bearer", ""),
        ([("Authorization", ""), ("X-Api-Key", "b")], "", ""),
    ],
)
def test_key_is_that_of_authorization_before_that_of_x_api_key(
    headers: list[tuple[str, str]], value: str | None, key: str | None
) -> None:
    found = keys.sent(CIMultiDict(headers))
    assert found == value
    assert (None if found is None else keys.bare(found)) == key


def test_bytes_that_are_no_utf_8_are_a_key_like_any_other() -> None:
    assert keys.octets(b"\xff\xfe".decode("utf-8", "surrogateescape")) == b"\xff\xfe"


def test_differences_are_told_by_name() -> None:
    alice, bob, carol = (ApiKey(name, name.encode()) for name in ("alice", "bob", "carol"))
    assert differences(None, Keys([bob, alice])) == "new: alice, bob"
    assert differences(Keys([alice, bob]), Keys([bob, alice])) == ""
    rotated = ApiKey("bob", b"other")
    told = differences(Keys([alice, bob]), Keys([rotated, carol]))
    assert told == "new: carol; gone: alice; changed: bob"

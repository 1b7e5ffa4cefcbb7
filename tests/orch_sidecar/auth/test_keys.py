"""The format of a key file, and the lookup of the key in a request."""

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


def test_entry_has_name_class_and_limit_of_a_key() -> None:
    text = entry_of(ALICE, "alice") + entry_of(BOB, "bob", bulk=True, concurrency=3)
    known = parse(text)
    assert len(known) == 2
    assert known.find(ALICE.encode()) == ApiKey("alice", bytes.fromhex(digest(ALICE)))
    assert known.find(BOB.encode()) == ApiKey("bob", bytes.fromhex(digest(BOB)), True, 3)


def test_entry_has_weight_and_budgets_of_a_key() -> None:
    text = entry_of(ALICE, "alice") + entry_of(
        BOB, "bob", weight=3, tokens_per_minute=1000, requests_per_minute=10
    )
    alice, bob = parse(text)
    assert (alice.weight, alice.has_budget) == (1.0, False)
    assert (bob.weight, bob.tokens_per_minute, bob.requests_per_minute) == (3.0, 1000, 10)
    assert bob.has_budget


def test_entry_has_roles_and_cache_group_of_a_key() -> None:
    text = entry_of(ALICE, "alice") + entry_of(BOB, "bob", sidecar=True, share_cache="team-a")
    alice, bob = parse(text)
    roles = alice.sidecar, alice.gateway, alice.metrics, alice.share_cache
    assert roles == (False, False, False, None)
    assert (bob.sidecar, bob.gateway, bob.metrics, bob.share_cache) == (
        True,
        False,
        False,
        "team-a",
    )


@pytest.mark.parametrize(
    "limits",
    [
        {"weight": 0},
        {"weight": float("inf")},
        {"weight": float("nan")},
        {"tokens_per_minute": 0},
        {"requests_per_minute": 0.5},
    ],
    ids=str,
)
def test_weight_or_budget_out_of_range_is_rejected(limits: dict[str, float]) -> None:
    [field] = limits
    with pytest.raises(InvalidKeyFile, match=f"entry 1: {field}: "):
        entry_of(ALICE, "alice", bulk=False, **limits)


@pytest.mark.parametrize("key", ["", ALICE[:-1], ALICE + " ", ALICE.upper(), digest(ALICE)])
def test_truncated_key_is_unknown(key: str) -> None:
    assert parse(entry_of(ALICE, "alice")).find(key.encode()) is None


def test_new_key_is_a_prefix_and_256_random_bits() -> None:
    assert re.fullmatch(r"orch-[A-Za-z0-9_-]{43}", ALICE)
    assert ALICE != BOB
    assert len(ALICE) < keys.MAX_KEY_BYTES
    with pytest.raises(AssertionError):
        new_key(b"too little")


@pytest.mark.parametrize("name", ["true", "123", "1e3", "null", "a.b@c-d"])
def test_name_that_yaml_could_misread_is_quoted(name: str) -> None:
    [entry] = parse(entry_of(ALICE, name))
    assert entry.name == name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "contains no key"),
        ("# nothing\n", "contains no key"),
        ("[]", "contains no key"),
        ("null", "contains no key"),
        ("alice: x", "must be a list"),
        ("alice", "must be a list"),
        ("- alice", "entry 1: must be a mapping"),
        ("- {name: [}", "is not valid YAML: line 1, column"),
        ("- !!python/object/apply:os.getcwd []", "is not valid YAML: line 1, column"),
        ("- \x00", "is not valid YAML"),
        ("- {name: 2024-99-99}", "is not valid YAML"),
    ],
)
def test_file_that_is_not_a_list_of_entries_is_rejected(text: str, expected: str) -> None:
    with pytest.raises(InvalidKeyFile, match=re.escape(expected)):
        parse(text)


@pytest.mark.parametrize(
    ("fields", "expected"),
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
        ("name: bob, sha256: HASH", "entry 2: the same name as of entry 1: "),
        (f"name: alice, sha256: {digest(BOB)}", "entry 2: the same sha256 as of entry 1: "),
        (
            "name: alice, sha256: HASH, sha256: HASH",
            "line 3: an entry must not have the same field twice",
        ),
    ],
)
def test_error_of_an_entry_names_field_and_rule_but_no_key(fields: str, expected: str) -> None:
    text = entry_of(BOB, "bob") + "- {" + fields.replace("HASH", digest(ALICE)) + "}\n"
    with pytest.raises(InvalidKeyFile) as wrong:
        parse(text)
    assert str(wrong.value).startswith(expected)
    assert ALICE[:30] not in str(wrong.value)
    assert wrong.value.__cause__ is None, "a traceback would show what pydantic was given"


def test_invalid_entry_is_not_created() -> None:
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
def test_authorization_has_precedence_over_x_api_key(
    headers: list[tuple[str, str]], value: str | None, key: str | None
) -> None:
    found = keys.credential(CIMultiDict(headers))
    assert found == value
    assert (None if found is None else keys.without_scheme(found)) == key


def test_key_may_have_bytes_that_are_not_utf_8() -> None:
    assert keys.key_bytes(b"\xff\xfe".decode("utf-8", "surrogateescape")) == b"\xff\xfe"


def test_differences_name_the_clients() -> None:
    alice, bob, carol = (ApiKey(name, name.encode()) for name in ("alice", "bob", "carol"))
    assert differences(None, Keys([bob, alice])) == "new: alice, bob"
    assert differences(Keys([alice, bob]), Keys([bob, alice])) == ""
    rotated = ApiKey("bob", b"other")
    expected = differences(Keys([alice, bob]), Keys([rotated, carol]))
    assert expected == "new: carol; removed: alice; changed: bob"

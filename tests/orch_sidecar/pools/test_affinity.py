"""Which pool last served the beginning of a prompt."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from orch_sidecar.pools.affinity import PrefixAffinity, prefixes_of

SALT = 7


def chat(*turns: str, **fields: object) -> bytes:
    messages = [{"role": "user", "content": turn} for turn in turns]
    return json.dumps({**fields, "messages": messages, "max_tokens": 9}).encode()


def test_next_turn_shares_the_prefixes_of_the_turn_before() -> None:
    first = prefixes_of(chat("x" * 900), "m", SALT)
    second = prefixes_of(chat("x" * 900, "y" * 700), "m", SALT)
    assert len(first) == 1
    assert second[:1] == first
    assert len(second) == 3


def test_another_prompt_model_or_salt_shares_no_prefix() -> None:
    own = set(prefixes_of(chat("x" * 5000), "m", SALT))
    others = (
        prefixes_of(chat("z" * 5000), "m", SALT),
        prefixes_of(chat("x" * 5000), "other", SALT),
        prefixes_of(chat("x" * 5000), "m", SALT + 1),
    )
    for other in others:
        assert own.isdisjoint(other)


def test_fields_before_the_prompt_may_differ() -> None:
    bodies = (chat("x" * 900, user=user) for user in ("a", "someone else"))
    first, second = (prefixes_of(body, "m", SALT) for body in bodies)
    assert first == second


def test_short_prompt_has_no_prefix_and_a_huge_one_a_bounded_number() -> None:
    assert prefixes_of(chat("hello"), "m", SALT) == ()
    assert (
        len(prefixes_of(chat("x" * 2**20), "m", SALT))
        == len(prefixes_of(chat("x" * 2**22), "m", SALT))
        < 64
    )


def test_longest_known_prefix_decides_and_later_placements_replace_earlier_ones() -> None:
    affinity = PrefixAffinity(SALT)
    system, chat_a = (1, 2), (1, 2, 3, 4)
    affinity.placed(b"", chat_a, "a")
    affinity.placed(b"", system, "b")
    assert affinity.served_by(b"", (*chat_a, 5)) == "a"
    assert affinity.served_by(b"", system) == "b"
    assert affinity.served_by(b"", (9,)) is None
    affinity.placed(b"", chat_a, "b")
    assert affinity.served_by(b"", chat_a) == "b"


def test_clients_do_not_see_each_other() -> None:
    affinity = PrefixAffinity(SALT)
    affinity.placed(b"alice", (1, 2), "a")
    assert affinity.served_by(b"bob", (1, 2)) is None


def test_client_with_many_prefixes_forgets_its_own_and_what_is_used_stays() -> None:
    affinity = PrefixAffinity(SALT, most=40)
    affinity.placed(b"quiet", (1, 2), "a")
    for number in range(100, 300):
        affinity.placed(b"busy", (number,), "b")
        affinity.placed(b"busy", (99,), "c")
    assert affinity.served_by(b"quiet", (1, 2)) == "a"
    assert affinity.served_by(b"busy", (299,)) == "b"
    assert affinity.served_by(b"busy", (99,)) == "c"
    assert affinity.served_by(b"busy", (200,)) is None
    assert affinity.size <= 40


@given(
    st.lists(
        st.tuples(st.sampled_from((b"a", b"b", b"c")), st.lists(st.integers(0, 30), max_size=6))
    )
)
def test_tables_are_bounded_and_remember_the_last_placement(
    placed: list[tuple[bytes, list[int]]],
) -> None:
    affinity = PrefixAffinity(SALT, most=12)
    for number, (client, prefixes) in enumerate(placed):
        affinity.placed(client, tuple(prefixes), str(number))
        assert affinity.size == sum(map(len, affinity._tables.values()))
        assert affinity.size <= 12 + 6  # and what one request adds
        if prefixes:
            assert affinity.served_by(client, tuple(prefixes)) == str(number)

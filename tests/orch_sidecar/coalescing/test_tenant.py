"""Whose request it is: what tells tenants apart, and what does not."""

from __future__ import annotations

import pytest

from orch_sidecar.coalescing.tenant import tenant

PLAIN = [
    (b"Host", b"sidecar"),
    (b"Authorization", b"Bearer one"),
    (b"Content-Type", b"application/json"),
]


@pytest.mark.parametrize(
    "fields",
    [
        [(b"authorization", b"Bearer one"), (b"content-type", b"application/json")],
        [*reversed(PLAIN)],
        [*PLAIN, (b"User-Agent", b"a/1"), (b"X-Stainless-Lang", b"python")],
        [*PLAIN, (b"X-Request-Id", b"a"), (b"traceparent", b"00-1-2-01"), (b"X-Orch-Pool", b"a")],
        [*PLAIN, (b"X-Forwarded-For", b"1.2.3.4"), (b"Content-Length", b"7"), (b"TE", b"trailers")],
    ],
)
def test_spelling_order_software_and_connection_are_no_tenant(
    fields: list[tuple[bytes, bytes]],
) -> None:
    assert tenant(fields) == tenant(PLAIN)


@pytest.mark.parametrize(
    "field",
    [
        (b"Authorization", b"Bearer two"),
        (b"X-Api-Key", b"one"),
        (b"Cookie", b"a=b"),
        (b"Openai-Organization", b"o"),
        (b"X-Forwarded-User", b"u"),
        (b"X-Forwarded-Access-Token", b"t"),
        (b"Origin", b"https://here"),
        (b"Content-Type", b"text/plain"),
        (b"X-Anything-Unknown", b""),
    ],
)
def test_keys_users_and_whatever_is_unknown_tell_tenants_apart(field: tuple[bytes, bytes]) -> None:
    others = [field, *(each for each in PLAIN if each[0] != field[0])]
    assert tenant(others) != tenant(PLAIN)
    assert tenant([*PLAIN, field]) != tenant(PLAIN)


def test_no_key_is_a_tenant_too() -> None:
    assert tenant([(b"Host", b"a")]) == tenant([(b"Host", b"b")]) == ()


def test_value_of_one_field_is_not_that_of_another() -> None:
    assert tenant([(b"X-A", b"1"), (b"X-B", b"2")]) != tenant([(b"X-A", b"2"), (b"X-B", b"1")])

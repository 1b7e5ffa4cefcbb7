"""Header fields that distinguish tenants, and those that do not."""

from __future__ import annotations

import pytest

from orch_sidecar.coalescing.shared_generation import tenant

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
        [*PLAIN, (b"x-slo-ttft-ms", b"500"), (b"x-gateway-inference-objective", b"bulk")],
    ],
)
def test_spelling_order_software_and_connection_do_not_distinguish_tenants(
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
        (b"x-gateway-inference-fairness-id", b"team"),
        (b"X-Forwarded-Access-Token", b"t"),
        (b"Content-Type", b"text/plain"),
        (b"X-Anything-Unknown", b""),
    ],
)
def test_keys_users_and_unknown_fields_distinguish_tenants(field: tuple[bytes, bytes]) -> None:
    others = [field, *(each for each in PLAIN if each[0] != field[0])]
    assert tenant(others) != tenant(PLAIN)
    assert tenant([*PLAIN, field]) != tenant(PLAIN)


def test_requests_without_distinguishing_fields_are_one_tenant() -> None:
    assert tenant([(b"Host", b"a")]) == tenant([(b"Host", b"b")]) == ()


def test_swapped_values_of_two_fields_distinguish_tenants() -> None:
    assert tenant([(b"X-A", b"1"), (b"X-B", b"2")]) != tenant([(b"X-A", b"2"), (b"X-B", b"1")])

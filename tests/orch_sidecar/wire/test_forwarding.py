"""Effects of the names of a client's header fields."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orch_sidecar.api import options
from orch_sidecar.wire.forwarding import (
    Fields,
    HeaderNames,
    filtered_response_head,
    header_names,
    request_head,
)
from orch_sidecar.wire.http1 import Head

PLAIN = (
    (b"Host", b"here"),
    (b"Authorization", b"Bearer key"),
    (b"X-Api-Key", b"key"),
    (b"traceparent", b"00-1-2-01"),
    (b"Connection", b"keep-alive"),
    (b"Accept", b"*/*"),
)

HEEDED = (
    *options._NAMES, "X-Orch-Lease", "X-Orch-Request-Id", "X-Request-Id", "X-Correlation-Id",
    "Content-Encoding", "Transfer-Encoding",
)  # fmt: skip


def names_of(fields: Fields) -> HeaderNames:
    return header_names(b"\n".join(name for name, _ in fields))


def test_fields_that_the_sidecar_ignores_are_no_options() -> None:
    assert not names_of(PLAIN).has_options
    assert not names_of(()).has_options


@pytest.mark.parametrize("name", HEEDED)
@pytest.mark.parametrize("spelled", [str.lower, str.upper])
def test_field_read_by_the_sidecar_is_an_option(name: str, spelled: Callable[[str], str]) -> None:
    assert names_of((*PLAIN, (spelled(name).encode(), b"1"))).has_options


@pytest.mark.parametrize("name", HEEDED)
def test_field_that_asks_for_how_a_request_is_served_does_so_and_no_id(name: str) -> None:
    """The sidecar reads the options of such requests alone."""
    names = names_of((*PLAIN, (name.encode(), b"1")))
    assert names.asks_for_options == (name in options._NAMES or name.startswith("X-Orch-"))


def test_cached_names_give_the_same_head() -> None:
    for authorization in (None, b"Bearer ours"):
        first, again = (
            request_head(b"GET / HTTP/1.1", PLAIN, b"", authorization=authorization, names=names)
            for names in (None, names_of(PLAIN))
        )
        assert first == again


def test_client_keys_are_not_forwarded_if_checked_here_or_replaced_by_the_engines() -> None:
    for authorization, strip_keys, passes in (
        (None, False, True),
        (None, True, False),
        (b"Bearer ours", False, False),
        (b"Bearer ours", True, False),
    ):
        head = request_head(
            b"GET / HTTP/1.1", PLAIN, b"", authorization=authorization, strip_keys=strip_keys
        )
        assert (b"X-Api-Key: key" in head) == (b"Bearer key" in head) == passes
        assert (b"Bearer ours" in head) == (authorization is not None)
        assert b"Accept: */*" in head


def test_head_without_client_fields_contains_no_empty_line() -> None:
    head = request_head(b"GET / HTTP/1.1", ((b"Host", b"x"),), b"host: e\r\n", authorization=None)
    assert head == b"GET / HTTP/1.1\r\nhost: e\r\n\r\n"


def test_what_proxies_and_other_sidecars_add_is_not_forwarded() -> None:
    names = ("Forwarded", "VIA", "X-Forwarded-For", "x-forwarded-user", "X-Orch-Sidecar-Key",
             "X-Amzn-SageMaker-Adapter-Identifier")  # fmt: skip
    client = (*PLAIN, *((name.encode(), b"of a client") for name in names))
    head = request_head(b"GET / HTTP/1.1", client, b"", authorization=None)
    assert b"of a client" not in head
    assert b"Accept: */*" in head


@pytest.mark.parametrize(
    ("fields", "lines"),
    [
        (((b"content-type", b"text/event-stream; charset=utf-8"),), [b"x-accel-buffering: no"]),
        (((b"content-type", b"application/json"),), []),
        ((), []),
        (
            ((b"x-accel-buffering", b"yes"), (b"content-type", b"Text/Event-Stream")),
            [b"x-accel-buffering: yes"],
        ),
    ],
)
def test_streams_ask_proxies_to_pass_them_on_at_once_unless_the_engine_says_how(
    fields: tuple[tuple[bytes, bytes], ...], lines: list[bytes]
) -> None:
    head, _ = filtered_response_head(Head(200, b"OK", fields, True, True, None), False)
    assert [each for each in head.split(b"\r\n") if each.startswith(b"x-accel")] == lines

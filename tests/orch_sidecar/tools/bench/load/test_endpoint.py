"""URLs, keys and the bytes of a request."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.bench.load.endpoint import Endpoint, EndpointError

KEY = "sk-very-secret"


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1/", "http://127.0.0.1:8080"),
        ("http://example.org", "http://example.org:80"),
        ("https://example.org/llm/v1", "https://example.org:443/llm"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_url_is_taken_with_and_without_its_version(url: str, seen: str) -> None:
    assert Endpoint.of(url).url == seen


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8080", "ftp://x", "http://", "http://x:0", "http://x:99999", "http://[::1",
        "http://x/v1?key=1", "http://x/#a", "",
    ],
)  # fmt: skip
def test_invalid_url_is_named_in_the_error(url: str) -> None:
    with pytest.raises(EndpointError) as caught:
        Endpoint.of(url)
    assert str(caught.value) == (
        f"{url!r} is not the URL of an endpoint: it must be http(s)://host[:port][/path]"
    )


def test_password_in_a_url_is_rejected_and_not_shown() -> None:
    with pytest.raises(EndpointError) as caught:
        Endpoint.of(f"http://me:{KEY}@example.org")
    assert KEY not in str(caught.value)
    assert "the URL (not shown) contains a user name or password" in str(caught.value)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")


@pytest.mark.parametrize("key", [f"{KEY}\r\nX: y", f"{KEY} x", f"{KEY}\u00e9"])
def test_key_that_cannot_be_sent_is_rejected_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(EndpointError) as caught:
        Endpoint.of("http://x")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("key", ["", " \n", None])
def test_without_a_key_there_is_no_field(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    assert Endpoint.of("http://x", pool="home").fields == {"X-Orch-Pool": "home"}


def test_key_and_given_fields_are_in_no_repr(key: None) -> None:
    endpoint = Endpoint.of("http://x", {"X-Other": "hidden"})
    assert KEY not in repr(endpoint)
    assert "hidden" not in repr(endpoint)


def test_message_is_a_whole_request(key: None) -> None:
    endpoint = Endpoint.of("http://[::1]:81/llm/v1", {"X-Orch-Class": "bulk"})
    message = endpoint.message("/v1/completions", b"{}", {"X-Orch-No-Coalesce": "true"})
    head, _, body = message.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    assert line == "POST /llm/v1/completions HTTP/1.1"
    assert body == b"{}"
    assert sorted(fields) == [
        f"Authorization: Bearer {KEY}",
        "Content-Length: 2",
        "Content-Type: application/json",
        "Host: [::1]:81",
        "X-Orch-Class: bulk",
        "X-Orch-No-Coalesce: true",
    ]


def test_given_authorization_replaces_the_key(key: None) -> None:
    endpoint = Endpoint.of("http://x", {"authorization": "Basic abc"})
    assert endpoint.message("/", b"", {}).lower().count(b"authorization:") == 1
    assert KEY.encode() not in endpoint.message("/", b"", {})

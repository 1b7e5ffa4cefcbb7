"""URLs, keys and the bytes of a request."""

from __future__ import annotations

import pytest

from orch_sidecar.tools.bench.load.endpoint import Endpoint, EndpointError

KEY = "sk-very-secret"
RULE = "it must be http(s)://host[:port][/path]"


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


def refused(url: str) -> str:
    with pytest.raises(EndpointError) as caught:
        Endpoint.of(url)
    assert KEY not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8080", "ftp://x", "http://", "http://x:0", "http://x:99999", "http://[::1",
        "http://x/v1?key=1", "http://x/#a", "",
    ],
)  # fmt: skip
def test_invalid_url_is_named_in_the_error(url: str) -> None:
    assert refused(url) == f"{url!r} is not the URL of an endpoint: {RULE}"


def test_password_in_a_url_is_rejected_and_not_shown() -> None:
    assert "the URL (not shown) contains" in refused(f"http://me:{KEY}@example.org")


@pytest.mark.parametrize("sent", [f"{KEY}\r\nX: y", f"{KEY} x", f"{KEY}\u00e9"])
def test_key_that_cannot_be_sent_is_rejected_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, sent: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", sent)
    assert "the API key (not shown) must be" in refused("http://x")


@pytest.mark.parametrize("key", ["", " \n", None])
def test_without_a_key_there_is_no_field(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    assert Endpoint.of("http://x", pool="home").fields == {"X-Orch-Pool": "home"}


def test_message_is_a_whole_request_with_the_key_which_no_repr_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f" {KEY}\n")
    endpoint = Endpoint.of("http://[::1]:81/llm/v1", {"X-Orch-Class": "bulk"})
    message = endpoint.message("/v1/completions", b"{}", {"X-Orch-No-Coalesce": "true"})
    head, _, body = message.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    assert (line, body) == ("POST /llm/v1/completions HTTP/1.1", b"{}")
    assert sorted(fields) == [
        f"Authorization: Bearer {KEY}",
        "Content-Length: 2",
        "Content-Type: application/json",
        "Host: [::1]:81",
        "X-Orch-Class: bulk",
        "X-Orch-No-Coalesce: true",
    ]
    assert KEY not in repr(endpoint)
    assert "bulk" not in repr(endpoint)
    given = Endpoint.of("http://x", {"authorization": "Basic abc"})
    assert given.message("/", b"", {}).lower().count(b"authorization:") == 1
    assert KEY.encode() not in given.message("/", b"", {})

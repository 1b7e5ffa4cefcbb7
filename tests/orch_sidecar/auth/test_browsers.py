"""Which requests of browsers the operators' listener takes."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from orch_sidecar.api.refusal import Reason
from orch_sidecar.auth.browsers import check_browser

HOST = "localhost:9080"
OWN = {
    "Host": HOST,
    "Origin": f"http://{HOST}",
    "Sec-Fetch-Site": "same-origin",
    "Content-Type": "application/json",
    "X-Orch-Operator": "true",
}


def headers(without: str = "", **changes: str) -> CIMultiDict[str]:
    """The header of the page's own request, with changes: `_` is a hyphen."""
    changed = OWN | {name.replace("_", "-"): value for name, value in changes.items()}
    return CIMultiDict({name: value for name, value in changed.items() if name != without})


def test_own_page_may_change_something() -> None:
    assert check_browser("POST", headers(), b"{}") is None
    assert check_browser("DELETE", headers(), b' {"why": "too slow"} ') is None
    # A browser without Sec-Fetch-Site states where a request comes from by its Origin.
    assert check_browser("POST", headers("Sec-Fetch-Site"), b"{}") is None


def test_own_page_behind_a_proxy_that_ends_tls_may_change_something() -> None:
    """The browser states that it calls the page's own server, which it does by https."""
    assert check_browser("POST", headers(Origin=f"https://{HOST}"), b"{}") is None


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none", "Same-Origin", ""])
def test_page_of_https_that_calls_by_http_is_another_site(site: str) -> None:
    sent = headers(Origin=f"https://{HOST}", Sec_Fetch_Site=site)
    assert check_browser("POST", sent, b"{}") is not None
    del sent["Sec-Fetch-Site"]  # as browsers do where they call by http
    refusal = check_browser("POST", sent, b"{}")
    assert refusal is not None
    assert "Sec-Fetch-Site" in refusal.message


def test_of_two_fetch_sites_none_counts() -> None:
    sent = headers(Origin=f"https://{HOST}")
    sent.add("Sec-Fetch-Site", "cross-site")
    assert check_browser("POST", sent, b"{}") is not None


def test_client_that_is_no_browser_needs_none_of_it() -> None:
    assert check_browser("POST", CIMultiDict({"Host": HOST}), b"") is None


@pytest.mark.parametrize(
    "origin",
    [
        "null", "", "http://evil.example", "http://localhost", "http://localhost:9081",
        "http://127.0.0.1:9080", "https://localhost", "http://localhost:9080.evil.example",
        "http://LOCALHOST:9080", "http://localhost:9080/", "http://user@localhost:9080",
        "http://localhost:9080 http://evil.example", "file://",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_any_other_origin_is_refused_whatever_it_asks(method: str, origin: str) -> None:
    refusal = check_browser(method, headers(Origin=origin), b"{}")
    assert refusal is not None
    assert refusal.reason is Reason.FORBIDDEN
    assert "must be http://localhost:9080" in refusal.message


def test_two_origins_are_refused() -> None:
    twice = headers()
    twice.add("Origin", OWN["Origin"])
    assert check_browser("POST", twice, b"{}") is not None


@pytest.mark.parametrize(
    ("header", "named"),
    [
        (headers("Origin"), "Origin"),
        (headers("X-Orch-Operator"), "X-Orch-Operator: true"),
        (headers(X_Orch_Operator="1"), "X-Orch-Operator: true"),
        (headers("Content-Type"), "JSON object"),
        (headers(Content_Type="text/plain"), "JSON object"),
        (headers(Content_Type="application/json; charset=utf-8"), "JSON object"),
    ],
)
def test_change_without_what_no_other_page_can_send_is_refused(
    header: CIMultiDict[str], named: str
) -> None:
    refusal = check_browser("POST", header, b"{}")
    assert refusal is not None
    assert named in refusal.message


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"a=b", b"{", b"\xff", b"[" * 1000])
def test_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    refusal = check_browser("POST", headers(), body)
    assert refusal is not None
    assert "JSON object" in refusal.message


@pytest.mark.parametrize(
    ("site", "mode", "taken"),
    [
        ("none", "navigate", True), ("same-origin", "cors", True), ("same-origin", "no-cors", True),
        ("cross-site", "navigate", True), ("cross-site", "no-cors", False),
        ("same-site", "no-cors", False), ("cross-site", "websocket", False),
    ],
)  # fmt: skip
def test_another_site_may_link_to_the_page_and_load_nothing(
    site: str, mode: str, taken: bool
) -> None:
    """It could not read what it loads, but would open streams."""
    sent = CIMultiDict({"Host": HOST, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode})
    assert (check_browser("GET", sent, b"") is None) is taken


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_change_from_another_site_is_refused_whatever_else_it_sends(site: str) -> None:
    sent = headers(Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate")
    assert check_browser("POST", sent, b"{}") is not None


def test_long_origin_is_truncated() -> None:
    refusal = check_browser("POST", headers(Origin="http://" + "x" * 8000), b"{}")
    assert refusal is not None
    assert len(refusal.message) < 500

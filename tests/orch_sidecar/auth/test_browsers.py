"""Which web pages a browser lets use a listener: by its name, from its own page, from others."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict
from pydantic import ValidationError

from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.auth.browsers import AllowedHosts, AllowedOrigins, check_browser, is_loopback
from orch_sidecar.config.settings import SidecarSettings

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


CONFIGURED = ["10.0.0.5", "orch-admin.example", "[fd00::1]", "2001:db8::5"]
HOSTS = AllowedHosts("admin_allowed_hosts", CONFIGURED)
OF_CLIENTS = AllowedHosts("allowed_hosts", ["orch.example"], any_address=True)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:9080", "127.0.0.1", "127.1.2.3:1", "[::1]:9080", "[::1]", "localhost:9080",
        "LOCALHOST", "localhost.", "orch.localhost:9080", "10.0.0.5:9080", "orch-admin.example",
        "Orch-Admin.Example:9080", "[fd00::1]:9080", "[FD00::1]",
        "[2001:db8::5]:9080",
    ],
)  # fmt: skip
def test_loopback_names_and_configured_names_are_accepted(host: str) -> None:
    assert HOSTS.check([host]) is None


@pytest.mark.parametrize(
    "hosts",
    [
        ["evil.example:9080"], ["evil.example"], ["127.0.0.1.evil.example"], ["localhost.evil"],
        ["notlocalhost"], ["10.0.0.6"], ["0.0.0.0"], ["[::]"], ["[::1"], [""], [" "], [":9080"],
        [], ["127.0.0.1", "evil.example"], ["evil.example, 127.0.0.1"], ["127.0.0.1@evil.example"],
        ["x.orch-admin.example"], ["2001"], ["2001:9080"],
    ],
)  # fmt: skip
def test_any_other_name_is_rejected_with_the_remedy(hosts: list[str]) -> None:
    refusal = HOSTS.check(hosts)
    assert refusal is not None
    assert "admin_allowed_hosts (ORCH_ADMIN_ALLOWED_HOSTS)" in refusal.message


@pytest.mark.parametrize(
    "hosts",
    [
        ["10.0.0.6"], ["10.0.0.6:80"], ["[2001:db8::6]:8080"], ["0.0.0.0:8080"], [],
        ["127.0.0.1"], ["[::1]:8080"], ["localhost:8080"], ["Orch.Example"],
    ],
)  # fmt: skip
def test_clients_may_use_any_address_and_none_for_a_rebound_page_has_a_name(
    hosts: list[str],
) -> None:
    assert OF_CLIENTS.check(hosts) is None


@pytest.mark.parametrize(
    "hosts",
    [
        ["evil.example:8080"], ["10.0.0.6.evil.example"], ["10.0.0.6", "evil.example"], [""],
        ["evil.example, 10.0.0.6"], ["10.0.0.6@evil.example"], ["1.2.3"], ["sub.orch.example"],
    ],
)  # fmt: skip
def test_clients_may_use_no_other_name(hosts: list[str]) -> None:
    for _ in range(2):  # what was accepted before is remembered, and nothing else
        refusal = OF_CLIENTS.check(hosts)
        assert refusal is not None
        assert "to allowed_hosts (ORCH_ALLOWED_HOSTS)" in refusal.message


def test_addresses_to_listen_on_that_this_machine_alone_reaches() -> None:
    names = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost", "a.localhost"]
    assert all(map(is_loopback, names))
    assert not any(map(is_loopback, ["", "0.0.0.0", "::", "10.0.0.5", "here.example"]))


def test_long_name_is_truncated() -> None:
    refusal = HOSTS.check(["x" * 8000])
    assert refusal is not None
    assert len(refusal.message) < 400


PAGE = "https://chat.example"


def asked(origin: str | None, **more: str) -> CIMultiDict[str]:
    headers = CIMultiDict({name.replace("_", "-"): value for name, value in more.items()})
    if origin is not None:
        headers["Origin"] = origin
    return headers


@pytest.mark.parametrize(
    "origin",
    [None, "", "null", "http://chat.example", "https://chat.example:8443", "https://chat.example.evil",
     "https://CHAT.example", "https://chat.example/", "https://a.chat.example"],
)  # fmt: skip
def test_other_origins_are_granted_nothing(origin: str | None) -> None:
    assert AllowedOrigins([PAGE]).fields(asked(origin)) == {"Vary": "Origin"}
    question = asked(origin, Access_Control_Request_Method="POST")
    refusal = AllowedOrigins([PAGE]).preflight("OPTIONS", question)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.FORBIDDEN
    assert "ORCH_ALLOWED_ORIGINS" in refusal.message


def test_page_may_send_what_it_asks_for_and_read_all_headers() -> None:
    question = asked(
        PAGE,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="authorization,content-type",
    )
    assert AllowedOrigins([PAGE]).preflight("OPTIONS", question) == {
        "Access-Control-Allow-Origin": PAGE,
        "Access-Control-Expose-Headers": "*",
        "Vary": "Origin",
        "Access-Control-Allow-Methods": "GET, POST, DELETE",
        "Access-Control-Allow-Headers": "authorization,content-type",
        "Access-Control-Max-Age": "600",
    }


def test_only_the_question_of_a_browser_is_one() -> None:
    origins = AllowedOrigins([PAGE])
    assert origins.preflight("OPTIONS", asked(PAGE)) is None
    assert origins.preflight("POST", asked(PAGE, Access_Control_Request_Method="POST")) is None


@pytest.mark.parametrize(
    "origin", ["*", "chat.example", "https://chat.example/", "https://*.example", "HTTPS://a", ""]
)
def test_setting_takes_exact_origins(origin: str) -> None:
    with pytest.raises(ValidationError, match="must be an origin as browsers send it"):
        SidecarSettings(allowed_origins=[origin])
    SidecarSettings(allowed_origins=[PAGE, "http://localhost:3000", "app://obsidian.md"])

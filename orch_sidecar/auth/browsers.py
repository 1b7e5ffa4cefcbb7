"""Decides which web pages a browser lets use a listener of this sidecar.

Pure. Any page that somebody visits can make the browser send requests to the loopback, or anywhere
else. Three rules, each where it is needed:

`AllowedHosts`, against DNS rebinding. A page can let its own name resolve to the loopback address;
a browser then treats the listener there as the page's own server and sends no `Origin`. The page
cannot change `Host`, which is its name. So only the names of the loopback and the configured names
are accepted.

`check_browser`, at the operators' listener: it takes requests of its own page only. Browsers state
where a request comes from in `Origin` and `Sec-Fetch-Site`, which no page can change, and ask
before they send another site a header of ours or a JSON body. So what changes something needs all
of these, each exactly. Another site may link to the page, and load nothing. Clients that are no
browsers send none of the two fields. Behind a proxy that ends TLS the page's own origin is `https`.
A page of `https` that calls this listener by `http` has the same `Origin` where both have their
default ports, but not the same site: browsers then state another one, or none. So `https` takes a
`Sec-Fetch-Site` that confirms it.

`AllowedOrigins`, at the clients' listener (CORS). A browser sends a page's JSON body, or its API
key, to another origin only if that grants it, and lets the page read the answer only then. So the
sidecar decides, and not the engine behind it, which by default grants it to every page. Origins are
compared exactly, as the Fetch Standard has them: scheme, host, and a port that is not the scheme's
own. https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

from multidict import MultiMapping

from orch_sidecar.api.headers import (
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD,
    CONTENT_TYPE,
    HOST,
    ORIGIN,
    SEC_FETCH_MODE,
    SEC_FETCH_SITE,
    VARY,
    X_ORCH_OPERATOR,
)
from orch_sidecar.api.refusal import Reason, Refusal
from vllm_plugin.contracts import senders

MAX_BODY_BYTES: Final = 1024  # of a request of the operators' own page
_MAX_ACCEPTED_HOSTS: Final = 256
_SHOWN_CHARACTERS: Final = 80
_METHODS: Final = "GET, POST, DELETE"
_MAX_AGE_S: Final = 600  # Chromium keeps it for two hours at most

Fields = Mapping[str, str]


class AllowedHosts:
    """The host names and addresses by which a listener may be called."""

    def __init__(
        self, setting: str, configured: Iterable[str], *, any_address: bool = False
    ) -> None:
        """`configured`: besides those of the loopback, without a port, by the `setting` of that
        name. An IPv6 address may be in brackets, as in a URL, or not, as an address to listen on.

        `any_address`: any address is accepted, and a request without `Host`. A rebound page has a
        name, and its browser sends that.
        """
        self._setting = setting
        self._any_address = any_address
        self._configured = frozenset(
            _name(f"[{each}]" if isinstance(parse_address(each), IPv6Address) else each)
            for each in configured
        )
        # Of those that were accepted a few, as they are sent: a client says the same each time.
        self.accepted: set[bytes] = set()

    def check(self, hosts: Sequence[str]) -> Refusal | None:
        """Returns the refusal of a request with these `Host` fields; None if it is accepted."""
        if len(hosts) == 1:
            accepted = self._is_accepted(hosts[0])
        else:
            accepted = self._any_address and not hosts
        if accepted:
            if hosts and len(self.accepted) < _MAX_ACCEPTED_HOSTS:
                self.accepted.add(hosts[0].encode("utf-8", "surrogateescape"))
            return None
        shown = ", ".join(hosts)[:_SHOWN_CHARACTERS]
        return Refusal(
            Reason.FORBIDDEN,
            f"the Host {shown!r} is not allowed on this listener: call it by a loopback name or by "
            f"its address, or add the name to {self._setting} (ORCH_{self._setting.upper()})",
        )

    def _is_accepted(self, host: str) -> bool:
        name = _name(host)
        if name in self._configured or is_loopback(name):
            return bool(name)
        return self._any_address and parse_address(name) is not None


def is_loopback(host: str) -> bool:
    """Returns whether a host name or address is that of the loopback."""
    return host.endswith(".localhost") or senders.is_loopback(host)


def _name(host: str) -> str:
    """Returns the name or address in a `Host` field; empty if there is none."""
    try:
        return (urlsplit(f"//{host.strip()}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def parse_address(name: str) -> IPv4Address | IPv6Address | None:
    """Returns an address; None for another name."""
    try:
        return ip_address(name)
    except ValueError:
        return None


def check_browser(method: str, headers: MultiMapping[str], body: bytes) -> Refusal | None:
    """Returns the refusal of a browser's request; None if it is accepted, or no browser's."""
    origins, sites = headers.getall(ORIGIN, []), headers.getall(SEC_FETCH_SITE, [])
    if not origins and not sites:
        return None
    host = headers.get(HOST, "")
    behind_tls = origins == [f"https://{host}"] and sites == ["same-origin"]
    reads = method in ("GET", "HEAD")
    if origins != [f"http://{host}"] and not behind_tls and (origins or not reads):
        shown = ", ".join(origins)[:_SHOWN_CHARACTERS] or "missing"
        host = host[:_SHOWN_CHARACTERS]
        return _refused(
            f"its Origin is {shown}, and must be http://{host}; behind a proxy that ends TLS, "
            f"https://{host} with {SEC_FETCH_SITE}: same-origin"
        )
    navigates = reads and headers.get(SEC_FETCH_MODE) == "navigate"
    if sites not in ([], ["same-origin"], ["none"]) and not navigates:
        return _refused(f"its {SEC_FETCH_SITE} is {', '.join(sites)[:_SHOWN_CHARACTERS]}")
    if reads:
        return None
    if headers.getall(X_ORCH_OPERATOR, []) != ["true"]:
        return _refused(f"it must have the header {X_ORCH_OPERATOR}: true")
    if headers.getall(CONTENT_TYPE, []) != ["application/json"] or not _is_object(body):
        return _refused(
            f"it must have a JSON object of at most {MAX_BODY_BYTES} bytes as its body, with "
            "Content-Type: application/json"
        )
    return None


def _is_object(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False


def _refused(rule: str) -> Refusal:
    return Refusal(
        Reason.FORBIDDEN,
        f"no web page but this listener's own may use it: {rule}; use /ui at this address, or a "
        "client that is no browser",
    )


class AllowedOrigins:
    """The origins whose pages may use the clients' listener."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)

    def __bool__(self) -> bool:
        return bool(self._origins)

    def fields(self, headers: MultiMapping[str]) -> Fields:
        """Returns what each response to a request with these headers has: nothing if it is not of
        such a page."""
        origin = headers.get(ORIGIN)
        if origin is None or origin not in self._origins:
            return {VARY: ORIGIN}
        return {
            ACCESS_CONTROL_ALLOW_ORIGIN: origin,
            ACCESS_CONTROL_EXPOSE_HEADERS: "*",
            VARY: ORIGIN,
        }

    def preflight(self, method: str, headers: MultiMapping[str]) -> Fields | Refusal | None:
        """Answers the question whether a page may send a request; None if it is no such question.

        No key is needed: browsers send none with it.
        """
        if method != "OPTIONS" or ACCESS_CONTROL_REQUEST_METHOD not in headers:
            return None
        origin = headers.get(ORIGIN, "")
        if origin not in self._origins:
            return Refusal(
                Reason.FORBIDDEN,
                f"pages of {origin[:_SHOWN_CHARACTERS]!r} may not use this sidecar: to permit it, "
                "add this origin to allowed_origins (ORCH_ALLOWED_ORIGINS)",
                ORIGIN,
            )
        return {
            **self.fields(headers),
            ACCESS_CONTROL_ALLOW_METHODS: _METHODS,
            ACCESS_CONTROL_ALLOW_HEADERS: headers.get(ACCESS_CONTROL_REQUEST_HEADERS, ""),
            ACCESS_CONTROL_MAX_AGE: str(_MAX_AGE_S),
        }

"""Decides which requests of browsers the operators' listener takes: only those of its own page.

Pure. Any page that an operator visits can make the browser send requests to the loopback. Browsers
state where a request comes from in `Origin` and `Sec-Fetch-Site`, which no page can change, and ask
before they send another site a header of ours or a JSON body. So what changes something needs all
of these, each exactly; the name by which it is called was checked before (`allowed_hosts`). Another
site may link to the page, and load nothing. Clients that are no browsers send none of the two
fields.

Behind a proxy that ends TLS the page's own origin is `https`. A page of `https` that calls this
listener by `http` has the same `Origin` where both have their default ports, but not the same site:
browsers then state another one, or none. So `https` takes a `Sec-Fetch-Site` that confirms it.
"""

from __future__ import annotations

import json
from typing import Final

from multidict import MultiMapping

from orch_sidecar.api.headers import (
    CONTENT_TYPE,
    HOST,
    ORIGIN,
    SEC_FETCH_MODE,
    SEC_FETCH_SITE,
    X_ORCH_OPERATOR,
)
from orch_sidecar.api.refusal import Reason, Refusal

MAX_BODY_BYTES: Final = 1024
_SHOWN_CHARACTERS: Final = 80


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

"""Decides which web pages of other origins a browser lets use this sidecar (CORS).

Pure. A browser sends a page's JSON body, or its API key, to another origin only if that grants it,
and lets the page read the answer only then. So the sidecar decides, and not the engine behind it,
which by default grants it to every page. Origins are compared exactly, as the Fetch Standard has
them: scheme, host, and a port that is not the scheme's own.

https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from multidict import MultiMapping

from orch_sidecar.api.headers import (
    ACCESS_CONTROL_ALLOW_HEADERS,
    ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD,
    ORIGIN,
    VARY,
)
from orch_sidecar.api.refusal import Reason, Refusal

Fields = Mapping[str, str]
_METHODS: Final = "GET, POST, DELETE"
_MAX_AGE_S: Final = 600  # Chromium keeps it for two hours at most
_SHOWN_CHARACTERS: Final = 80


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

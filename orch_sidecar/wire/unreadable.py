"""What clients send that cannot be read: bytes that are not a request, and broken bodies."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from yarl import URL

from orch_sidecar.api.refusal import Reason, Refusal

CONNECT: Final = "CONNECT"
_ROOT: Final = URL("/")


class BodyRefused(Exception):
    """Nobody waits for the rest of a body. Raised where that body is read."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


UNREADABLE: Final = (web.RequestPayloadError, BodyRefused)
"""What is raised where a body is read that cannot be read to its end."""


def refusal_of(error: Exception) -> Refusal:
    """Returns the refusal of a request whose body is UNREADABLE."""
    if isinstance(error, BodyRefused):
        return error.refusal
    return Refusal(Reason.INVALID_REQUEST, f"the body: {error}")


def not_http(why: str) -> Refusal:
    """Returns the refusal of bytes that are not a request."""
    return Refusal(Reason.INVALID_REQUEST, f"not a valid HTTP request: {why}")


def url_of(method: str, target: str) -> URL:
    """Returns what a target names here. Raises ValueError: nothing, it is not a URL."""
    if target.startswith("/"):
        path, _, query = target.partition("?")
        query, _, fragment = query.partition("#")
        path, *behind = path.split("#", 1)
        return URL.build(
            path=path, query_string=query, fragment=fragment or "".join(behind), encoded=True
        )
    if (method, target) == ("OPTIONS", "*"):
        return URL(target, encoded=True)
    url = URL.build(authority=target) if method == CONNECT else URL(target, encoded=True)
    if url.raw_host is None:
        raise ValueError(target)
    return _ROOT if method == CONNECT else url.relative()

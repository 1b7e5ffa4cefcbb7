"""Refuses bytes that are not a request, and bodies that cannot be read to their ends.

Knows no connection. aiohttp's parser finds what is wrong.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from aiohttp import HttpVersion10, web
from aiohttp.http import RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from orch_sidecar.api.refusal import Reason, Refusal

# A placeholder for a request that aiohttp's parser does not accept: nothing is known of it.
_NO_FIELDS: Final = CIMultiDictProxy(CIMultiDict[str]())
UNREADABLE: Final = RawRequestMessage(
    "UNKNOWN", "/", HttpVersion10, _NO_FIELDS, (), True, None, False, False, URL("/")
)


class BodyRefused(web.RequestPayloadError):
    """Nobody waits for the rest of a body. Raised where that body is read."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def refusal_of(error: web.RequestPayloadError) -> Refusal:
    """Returns the refusal of a request whose body could not be read to its end."""
    if isinstance(error, BodyRefused):
        return error.refusal
    return Refusal(Reason.INVALID_REQUEST, f"the body: {error}")


def not_http(error: str | None) -> Refusal:
    """Returns the refusal of bytes that are not a request.

    aiohttp's parser returns all requests of a read, or an error: valid ones before the error are
    lost with it, and this answers the first of them.
    """
    text = f"not a valid HTTP request: {first_line(error)}; nothing that came with it was served"
    return Refusal(Reason.INVALID_REQUEST, text)


def first_line(error: str | None) -> str:
    """Returns what aiohttp's parser found wrong, without the bytes that it shows below."""
    return (error or HTTPStatus.BAD_REQUEST.phrase).split("\n")[0].rstrip(":")

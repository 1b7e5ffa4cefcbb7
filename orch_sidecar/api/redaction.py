"""Leases and errors as they may stand in logs, spans and pages: without what must stay secret.

Pure. A lease is an unguessable id that lets a request into an engine; its first characters tell
which one it is. An error of the HTTP client shows the request that it belongs to: a URL with a
lease or an instance in it, and the engine's key in a header.
"""

from __future__ import annotations

from typing import Final

# Of `<instance>.<random>.<cost>`: the instance, and 7 of the 32 random digits.
_SHOWN_CHARACTERS: Final = 24


def short_lease(lease: str) -> str:
    """The part of a lease that names it, not the part that makes it unguessable."""
    return lease[:_SHOWN_CHARACTERS]


def error_text(error: BaseException) -> str:
    """An error in words; one that belongs to a request without that request."""
    if hasattr(error, "request_info"):
        status, message = getattr(error, "status", None), getattr(error, "message", "")
        return f"{type(error).__name__}(status={status}, message={message!r})"
    return repr(error)

"""Removes secrets from leases and errors, for logs, spans and pages.

Pure. A lease is an unguessable id that admits a request to an engine; its first characters identify
it. The text of an HTTP client's error contains the request: a URL with a lease or an instance, and
the engine's key in a header.
"""

from __future__ import annotations

from typing import Final

# Of `<instance>.<random>.<cost>`: the instance, and 7 of the 32 random digits.
_SHOWN_CHARACTERS: Final = 24


def short_lease(lease: str) -> str:
    """Returns the part of a lease that identifies it, without the part that is secret."""
    return lease[:_SHOWN_CHARACTERS]


def error_text(error: BaseException) -> str:
    """Returns an error as text, without the request that it may belong to."""
    if hasattr(error, "request_info"):
        status, message = getattr(error, "status", None), getattr(error, "message", "")
        return f"{type(error).__name__}(status={status}, message={message!r})"
    return repr(error)

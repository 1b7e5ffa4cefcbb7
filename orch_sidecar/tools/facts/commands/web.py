"""Reads from servers over HTTP: sidecars and Jaeger."""

from __future__ import annotations

import argparse
import http.client
import urllib.error
import urllib.request
from typing import Final
from urllib.parse import urlsplit

from orch_sidecar.tools.facts.tables.table import UnreadableFile

_TIMEOUT_S: Final = 60.0
# The characters of an answer that an error message shows.
_SHOWN_CHARACTERS: Final = 300


def http_url(text: str) -> str:
    """Parses the URL of a server, without a slash at its end."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise argparse.ArgumentTypeError(f"{text!r} must begin with http:// or https://")
    return text.rstrip("/")


def read_url(url: str, key: str | None = None) -> bytes:
    """Returns what a server has there. `key`: of its client. Raises UnreadableFile."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 (the scheme was checked)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        with error:
            body = " ".join(error.read().decode("utf-8", "replace").split())
        reason: object = f"{error.code} {error.reason}: {body:.{_SHOWN_CHARACTERS}}"
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else repr(error)
    raise UnreadableFile(f"cannot read {url.partition('?')[0]}: {reason}") from None

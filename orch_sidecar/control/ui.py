"""Serves the files of the page: public and static, from `orch_sidecar/ui`.

They contain nothing of this sidecar: its data come by `GET /v1/live`, with an API key where clients
need one. The content security policy allows scripts, styles and data of this origin only, none of
them inline, and no other page may frame this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aiohttp import web

from orch_sidecar.api.endpoints import PAGE, UI_FILES
from orch_sidecar.api.headers import (
    ACCEPT,
    CACHE_CONTROL,
    CONTENT_SECURITY_POLICY,
    CONTENT_TYPE,
    CROSS_ORIGIN_RESOURCE_POLICY,
    LOCATION,
    REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
)
from orch_sidecar.api.refusal import Reason, Refusal
from orch_sidecar.control.pages import Page

_FOLDER: Final = Path(__file__).parents[1] / "ui"
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_HEADERS: Final = {
    CONTENT_SECURITY_POLICY: "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    X_CONTENT_TYPE_OPTIONS: "nosniff",
    REFERRER_POLICY: "no-referrer",
    CROSS_ORIGIN_RESOURCE_POLICY: "same-origin",
    CACHE_CONTROL: "no-cache",  # a new release must not meet scripts of the old one
}
_NOT_INSTALLED: Final = Refusal(
    Reason.NOT_FOUND,
    "this installation of orch-sidecar has no page: install its wheel as it is built, with the "
    "files of orch_sidecar/ui",
)


def pages() -> Mapping[str, Page]:
    """Returns what answers a GET of each path of the page; reads the files, once."""
    return {path: _page(_FOLDER / name) for path, name in UI_FILES.items()}


def redirect(http: web.BaseRequest) -> web.Response | None:
    """Sends a browser that asks for `/` to the page; None: it is another client."""
    if "text/html" not in ",".join(http.headers.getall(ACCEPT, ())):
        return None
    return web.Response(status=307, headers={LOCATION: PAGE.lstrip("/"), CACHE_CONTROL: "no-cache"})


def _page(path: Path) -> Page:
    try:
        body = path.read_bytes()
    except OSError:
        return lambda *_: _NOT_INSTALLED
    headers = _HEADERS | {CONTENT_TYPE: f"{_TYPES[path.suffix]}; charset=utf-8"}
    return lambda *_: web.Response(body=body, headers=headers)

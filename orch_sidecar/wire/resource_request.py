"""Describes a request for a file or a batch that the sidecar stores, for those who answer it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from aiohttp import web

from orch_sidecar.api.endpoints import ResourcePath


class ResourceRequest(NamedTuple):
    """A request for a file, a batch, or all of them, with a method that its path supports.

    `what`, `name`: what its path names. `owner`: the digest of its key, empty without keys.
    `headers`: of a response that is sent where the request is answered.
    """

    http: web.BaseRequest
    what: ResourcePath
    name: str
    owner: str
    headers: Mapping[str, str]

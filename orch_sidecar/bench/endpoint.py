"""Where the requests of a measurement go: an OpenAI endpoint, with or without a sidecar."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

_ANSWERS_WITHIN_S = 10.0


class EndpointError(Exception):
    """The endpoint cannot be used as it was asked to; the message says why."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI endpoint. `base`: what stands before `/v1` in its paths, empty as a rule."""

    secure: bool
    host: str
    port: int
    base: str
    api_key: str | None = field(default=None, repr=False)
    fields: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, url: str, api_key: str | None, fields: Mapping[str, str]) -> Endpoint:
        """`url`: with or without `/v1` at its end. `fields`: of every request's head.

        Raises EndpointError for what is no URL of a server.
        """
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise EndpointError(f"{url!r} is no URL: it must be http(s)://host[:port][/path]")
        secure = parts.scheme == "https"
        base = parts.path.rstrip("/").removesuffix("/v1")
        return cls(secure, parts.hostname, port or (443 if secure else 80), base, api_key, fields)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.base}"

    @property
    def ssl(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.secure else None

    def message(self, path: str, body: bytes, more: Mapping[str, str]) -> bytes:
        """A whole POST. `more`: further fields of its head."""
        fields = {
            "Host": f"{self.host}:{self.port}",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **self._own_fields(),
            **more,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST {self.base}{path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body

    def _own_fields(self) -> dict[str, str]:
        key = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        return {**key, **self.fields}

    async def ask(self, path: str, body: Any = None) -> Any | None:
        """The JSON that a path answers, to a POST if there is a body; None if there is no such.

        Raises EndpointError.
        """
        method = "GET" if body is None else "POST"
        timeout = aiohttp.ClientTimeout(total=_ANSWERS_WITHIN_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._own_fields()) as session,
                session.request(method, self.url + path, json=body) as response,
            ):
                if response.status in (404, 405):
                    return None
                if response.status != 200:
                    text = (await response.text())[:300]
                    raise EndpointError(f"{method} {path} was answered {response.status}: {text}")
                return await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            cause = str(error) or type(error).__name__
            raise EndpointError(f"{method} {self.url}{path}: {cause}") from error

    async def model(self) -> str:
        """The first model that it serves. Raises EndpointError."""
        listed = await self.ask("/v1/models")
        try:
            return str(listed["data"][0]["id"])  # type: ignore[index]
        except (LookupError, TypeError):
            raise EndpointError(
                f"{self.url}/v1/models names no model: give one with --model"
            ) from None

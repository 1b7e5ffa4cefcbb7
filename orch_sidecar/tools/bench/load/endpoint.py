"""Where the requests of a measurement go: an OpenAI endpoint, with or without a sidecar.

A key, and the fields that somebody gives, are in no message, no result and no repr.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import aiohttp

from orch_sidecar.tools.bench.load.stream import shown

_ANSWERS_WITHIN_S: Final = 10.0
_SHOWN: Final = 300  # characters of an answer that says what is wrong

# What a request's line and fields can hold: a path, a host, a key.
_VISIBLE: Final = re.compile(r"[!-~]*")


class EndpointError(Exception):
    """The endpoint cannot be used as it was asked to; the message says why."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI endpoint. `base`: what stands before `/v1` in its paths, empty as a rule."""

    secure: bool
    host: str
    port: int
    base: str
    fields: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, url: str, api_key: str | None, fields: Mapping[str, str]) -> Endpoint:
        """`url`: with or without `/v1` at its end. `fields`: of every request's head; one of
        them may be an `Authorization` in the place of the key.

        Raises EndpointError for what is no URL of a server, and for a key that cannot be sent.
        """
        parts, port = _parts(url)
        if api_key is not None and _VISIBLE.fullmatch(api_key) is None:
            raise EndpointError("the API key (not shown) must be ASCII without blanks")
        own = dict(fields)
        if api_key is not None and "authorization" not in map(str.lower, own):
            own["Authorization"] = f"Bearer {api_key}"
        secure = parts.scheme == "https"
        base = parts.path.rstrip("/").removesuffix("/v1")
        assert parts.hostname is not None
        return cls(secure, parts.hostname, port or (443 if secure else 80), base, own)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.base}"

    @property
    def ssl(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.secure else None

    def message(self, path: str, body: bytes, more: Mapping[str, str]) -> bytes:
        """A whole POST. `more`: further fields of its head."""
        fields = {
            "Host": self.authority,
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **self.fields,
            **more,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST {self.base}{path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body

    async def ask(self, path: str, body: Any = None) -> Any | None:
        """The JSON that a path answers, to a POST if there is a body; None if there is no such.

        Raises EndpointError.
        """
        method = "GET" if body is None else "POST"
        timeout = aiohttp.ClientTimeout(total=_ANSWERS_WITHIN_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self.fields) as session,
                session.request(method, self.url + path, json=body) as response,
            ):
                if response.status in (404, 405):
                    return None
                text = await response.text()
                if response.status != 200:
                    said = shown(text, _SHOWN)
                    raise EndpointError(f"{method} {path} was answered {response.status}: {said}")
                return json.loads(text, parse_constant=_no_number)
        except TimeoutError as error:
            late = f"no answer within {_ANSWERS_WITHIN_S:g} s"
            raise EndpointError(f"{method} {self.url}{path}: {late}") from error
        except (aiohttp.ClientError, ValueError) as error:
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

    async def tokens(self, model: str, text: str) -> list[int] | None:
        """The ids of a text without special tokens, from vLLM's `/tokenize`; None without one.

        Raises EndpointError.
        """
        asked = {"model": model, "prompt": text, "add_special_tokens": False}
        answer = await self.ask("/tokenize", asked)
        if answer is None:
            return None
        try:
            return list(answer["tokens"])
        except (LookupError, TypeError):
            raise EndpointError(f"{self.url}/tokenize: an answer without tokens") from None


def _parts(url: str) -> tuple[Any, int | None]:
    """A URL and its port. Raises EndpointError, which does not show what may be a password."""
    rule = "it must be http(s)://host[:port][/path]"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if "@" in url:
        raise EndpointError(
            f"a URL with a user name or password (not shown) is not used: {rule}, and a key "
            "comes from the environment"
        )
    sound = parts.scheme in ("http", "https") and parts.hostname and port != 0
    if not sound or parts.query or parts.fragment or _VISIBLE.fullmatch(url) is None:
        raise EndpointError(f"{url!r} is no URL of an endpoint: {rule}")
    return parts, port


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")

"""The OpenAI endpoint under test, with or without a sidecar.

The API key and the extra header fields appear in no error, result or repr.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import aiohttp
from yarl import URL

from orch_sidecar.api.errors import error_text
from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.bench.load.call import shown

_TIMEOUT_S: Final = 10.0
_SHOWN: Final = 300  # characters of an error response

KEY_VARIABLE: Final = "OPENAI_API_KEY"

# What a header field can hold without escaping.
_VISIBLE: Final = re.compile(r"[!-~]*")


class EndpointError(Unavailable):
    """The endpoint cannot be used as requested; the message gives the reason."""


def api_key() -> str | None:
    """Returns the key from the environment; an option would show up in the process list."""
    return os.environ.get(KEY_VARIABLE, "").strip() or None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI endpoint. `authority`: its host and port. `base`: the path prefix before `/v1`,
    usually empty."""

    scheme: str
    authority: str
    base: str
    fields: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, url: str, api_key: str | None, fields: Mapping[str, str]) -> Endpoint:
        """Parses a URL, with or without a final `/v1`.

        `fields`: header fields of every request; an `Authorization` among them replaces the key.
        Raises EndpointError for an invalid URL, and for a key that no header can hold.
        """
        if api_key is not None and _VISIBLE.fullmatch(api_key) is None:
            raise EndpointError("the API key (not shown) must be printable ASCII without spaces")
        own = dict(fields)
        if api_key is not None and "authorization" not in map(str.lower, own):
            own["Authorization"] = f"Bearer {api_key}"
        parsed = _parsed(url)
        base = parsed.raw_path.rstrip("/").removesuffix("/v1")
        return cls(parsed.scheme, f"{parsed.host_subcomponent}:{parsed.port}", base, own)

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.base}"

    def message(self, path: str, body: bytes, more: Mapping[str, str]) -> bytes:
        """Returns the bytes of a POST. `more`: further header fields."""
        fields = {
            "Host": self.authority,
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **self.fields,
            **more,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST {self.base}{path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body

    async def fetch_json(
        self,
        path: str,
        body: Any = None,
        more: Mapping[str, str] | None = None,
        *,
        optional: bool = False,
    ) -> Any | None:
        """Returns the JSON of a GET, or of a POST of `body`; None if the path does not exist.

        `more`: further header fields. `optional`: any answer but JSON with status 200 counts as
        none, as servers answer what they do not know in many ways. Raises EndpointError.
        """
        method = "GET" if body is None else "POST"
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self.fields) as session,
                session.request(method, self.url + path, json=body, headers=more) as response,
            ):
                if response.status in (404, 405) or (optional and response.status != 200):
                    return None
                text = await response.text(errors="replace")
                if response.status != 200:
                    detail = shown(text, _SHOWN)
                    raise EndpointError(f"{method} {path} returned {response.status}: {detail}")
                try:
                    return json.loads(text, parse_constant=_reject_constant)
                except ValueError:
                    if optional:
                        return None
                    raise
        except TimeoutError as error:
            late = f"no response within {_TIMEOUT_S:g} s"
            raise EndpointError(f"{method} {self.url}{path}: {late}") from error
        except (aiohttp.ClientError, ValueError) as error:
            cause = error_text(error) if isinstance(error, OSError) else str(error)
            raise EndpointError(f"{method} {self.url}{path}: {cause}") from error

    async def model(self) -> str:
        """Returns the first served model. Raises EndpointError."""
        listed = await self.fetch_json("/v1/models")
        try:
            return str(listed["data"][0]["id"])  # type: ignore[index]
        except (LookupError, TypeError):
            raise EndpointError(
                f"{self.url}/v1/models lists no model: choose one with --model"
            ) from None

    async def tokens(self, model: str, text: str) -> list[int] | None:
        """Returns the token ids of a text from vLLM's `/tokenize`; None if that does not exist.

        Raises EndpointError.
        """
        query = {"model": model, "prompt": text, "add_special_tokens": False}
        answer = await self.fetch_json("/tokenize", query)
        if answer is None:
            return None
        try:
            return list(answer["tokens"])
        except (LookupError, TypeError):
            raise EndpointError(f"{self.url}/tokenize returned no list of tokens") from None


def _parsed(url: str) -> URL:
    """Parses a URL. Raises EndpointError, which never shows a password."""
    rule = "it must be http(s)://host[:port][/path]"
    if "@" in url:
        raise EndpointError(
            f"the URL (not shown) contains a user name or password: {rule}, and an API key is "
            "read from the environment"
        )
    try:
        found = URL(url)
    except ValueError:
        found = URL()
    sound = found.scheme in ("http", "https") and found.host and found.port
    if not sound or found.query_string or found.fragment:
        raise EndpointError(f"{url!r} is not the URL of an endpoint: {rule}")
    return found


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")

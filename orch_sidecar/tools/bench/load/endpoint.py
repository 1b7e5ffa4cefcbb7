"""The OpenAI endpoint under test, with or without a sidecar, and what it reports of its engine.

The API key and the extra header fields appear in no error, result or repr.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from yarl import URL

from orch_sidecar.api.headers import X_ORCH_POOL
from orch_sidecar.tools.arguments import Unavailable
from orch_sidecar.tools.facts.labels.snapshot import Snapshot

KEY_VARIABLE: Final = "OPENAI_API_KEY"

# What a header field can hold without escaping.
_VISIBLE: Final = re.compile(r"[!-~]*")


class EndpointError(Unavailable):
    """The endpoint cannot be used as requested; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI endpoint. `url`: with its port, without `/v1`. `pool`: of a sidecar with several;
    None for the only one."""

    url: str
    fields: Mapping[str, str] = field(default_factory=dict, repr=False)
    pool: str | None = None

    @classmethod
    def of(
        cls, url: str, fields: Mapping[str, str] | None = None, pool: str | None = None
    ) -> Endpoint:
        """Parses a URL, with or without a final `/v1`; its API key is read from the environment, as
        an option would show up in the process list.

        `fields`: header fields of every request; an `Authorization` among them replaces the key.
        Raises EndpointError for an invalid URL, and for a key that no header can hold.
        """
        key, own = os.environ.get(KEY_VARIABLE, "").strip(), dict(fields or {})
        if _VISIBLE.fullmatch(key) is None:
            raise EndpointError("the API key (not shown) must be printable ASCII without spaces")
        if key and "authorization" not in map(str.lower, own):
            own["Authorization"] = f"Bearer {key}"
        if pool is not None:
            own[X_ORCH_POOL] = pool
        parsed = _parsed(url)
        base = parsed.raw_path.rstrip("/").removesuffix("/v1")
        authority = f"{parsed.host_subcomponent}:{parsed.port}"
        return cls(f"{parsed.scheme}://{authority}{base}", own, pool)

    def adding(self, fields: Mapping[str, str]) -> Endpoint:
        """Returns it with further header fields of every request."""
        return replace(self, fields={**self.fields, **fields})

    def message(self, path: str, body: bytes, more: Mapping[str, str]) -> bytes:
        """Returns the bytes of a POST. `more`: further header fields."""
        parts = urlsplit(self.url)
        fields = {
            "Host": parts.netloc,
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **self.fields,
            **more,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"POST {parts.path}{path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


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


@dataclass(frozen=True, slots=True)
class Capabilities:
    """A document of `/v1/capabilities`, and the snapshot of the pool in it.

    `idle`: False where the engine did not become idle in time.
    """

    document: Mapping[str, Any]
    snapshot: Snapshot
    idle: bool = True

    @property
    def entry(self) -> Mapping[str, Any]:
        """The engine of the pool in the document."""
        entries: list[Mapping[str, Any]] = self.document["engines"]
        return next(each for each in entries if each.get("pool") == self.snapshot.pool)

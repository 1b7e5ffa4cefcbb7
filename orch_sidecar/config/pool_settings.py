"""The settings of one engine, or of one child sidecar: an entry of `pools`."""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

_Place = TypeVar("_Place", str, Path, None)

POOL_NAME: Final = r"^[a-z][a-z0-9-]{0,62}$"
_MAX_HEADLESS_NAME_CHARACTERS: Final = 57


def authority(host: str, port: int) -> str:
    """Returns an address and a port as a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def checked_url(value: str) -> str:
    """Validates the URL of an engine. Raises ValueError with the rule."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be http://host:port or https://host:port")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        raise ValueError("must have no path, query or user: http://host:port")
    if parts.port == 0:  # reading an invalid port raises ValueError
        raise ValueError("must have a port from 1 to 65535")
    return value.rstrip("/")


def header_value(value: SecretStr | None) -> SecretStr | None:
    """Validates a key. Raises ValueError with the rule, without the key."""
    key = "" if value is None else value.get_secret_value()
    if any(not "!" <= character <= "~" for character in key):
        raise ValueError("must consist of printable ASCII characters without spaces")
    return value


def in_home(value: _Place) -> _Place:
    """Expands `~` at the beginning of a path: no shell does so in a file, in JSON, in the unit of a
    service or after the `=` of a flag."""
    if value is None:
        return None
    return type(value)(os.path.expanduser(value))  # noqa: PTH111 (pathlib raises without a home)


class PoolSettings(BaseModel):
    """One engine, or one child sidecar (`tier`)."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(
        pattern=POOL_NAME,
        description="a lower-case letter, then lower-case letters, digits and `-`: 63 characters, "
        "57 for a headless pool; names differ",
    )
    url: str = Field(description="`http://host:port` or `https://host:port`")
    profile: str = Field(min_length=1, description="name or path")
    api_key: SecretStr | None = Field(None, description="key of the engine or sidecar at `url`")
    api_key_file: Path | None = Field(
        None,
        description="file that contains that key and nothing else, instead of `api_key`; read at "
        "the start, so that a restart takes a changed one. One that is missing, empty or "
        "unreadable prevents the start",
    )
    tier: bool = Field(default=False, description="`true`: it is a sidecar itself")
    below: str | None = Field(None, pattern=POOL_NAME, description="which pool of that sidecar")
    headless: bool = Field(
        default=False,
        description="`true`: each address of the host name is one engine or sidecar (`http` only); "
        "the list of addresses may change",
    )
    on_request: bool = Field(
        default=False,
        description="`true`: takes only requests that ask for it, by name or by measurement type; "
        "at least one pool must be without it",
    )

    _url = field_validator("url")(checked_url)
    _key = field_validator("api_key")(header_value)
    _paths = field_validator("api_key_file")(in_home)

    @model_validator(mode="after")
    def _below_needs_tier(self) -> PoolSettings:
        if self.below is not None and not self.tier:
            raise ValueError("below is the name of a pool of a child sidecar: set tier: true, too")
        return self

    @model_validator(mode="after")
    def _headless_needs_http(self) -> PoolSettings:
        if self.headless and not self.url.startswith("http://"):
            raise ValueError(
                "the url of a headless pool must begin with http://: certificates are issued for "
                "names, not for addresses"
            )
        if self.headless and len(self.name) > _MAX_HEADLESS_NAME_CHARACTERS:
            raise ValueError(
                f"the name of a headless pool must have at most {_MAX_HEADLESS_NAME_CHARACTERS} "
                "characters: a number is appended for each address"
            )
        return self

"""The sidecar's settings: flags before environment (`ORCH_…`) before a YAML file before these.

The file is named by `ORCH_CONFIG` or `--config`. A wrong value is reported with the setting,
the value and the rule. Several engines are given as `pools`: a list in the file, JSON in
`ORCH_POOLS`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

POOL_NAME: Final = r"^[a-z][a-z0-9-]{0,62}$"
_LONGEST_HEADLESS_NAME: Final = 57
_HOST: Final = r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]"


def _origin(value: str) -> str:
    """Checks the URL of an engine. Raises ValueError with the rule."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be http://host:port or https://host:port")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        raise ValueError("must have no path, query or user: http://host:port")
    if parts.port == 0:  # reading it raises ValueError for what is no port
        raise ValueError("must have a port from 1 to 65535")
    return value.rstrip("/")


def _header_value(value: SecretStr | None) -> SecretStr | None:
    """Checks a key. Raises ValueError with the rule, without the key."""
    key = "" if value is None else value.get_secret_value()
    if any(not "!" <= character <= "~" for character in key):
        raise ValueError("must be printable ASCII without spaces and line breaks")
    return value


class PoolSettings(BaseModel):
    """One engine, or one sidecar below this one (`tier`).

    `headless`: the host of `url` is a name with an address for each of several of them, which
    come and go. `on_request`: takes only what asks for it, by name or by measurement type.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = Field(pattern=POOL_NAME)
    url: str
    profile: str = Field(min_length=1)
    api_key: SecretStr | None = None
    tier: bool = False
    below: str | None = Field(None, pattern=POOL_NAME)  # which pool of that sidecar
    headless: bool = False
    on_request: bool = False

    _url = field_validator("url")(_origin)
    _key = field_validator("api_key")(_header_value)

    @model_validator(mode="after")
    def _below_is_of_a_tier(self) -> PoolSettings:
        if self.below is not None and not self.tier:
            raise ValueError("below names a pool of a sidecar: it needs tier: true")
        return self

    @model_validator(mode="after")
    def _headless_is_reached_by_addresses(self) -> PoolSettings:
        if self.headless and not self.url.startswith("http://"):
            raise ValueError("headless needs http: a certificate is for a name, not for addresses")
        if self.headless and len(self.name) > _LONGEST_HEADLESS_NAME:
            raise ValueError(
                f"the name of a headless pool has {_LONGEST_HEADLESS_NAME} characters at most: "
                "a number is added for each address"
            )
        return self


class SidecarSettings(BaseSettings):
    """Admission and relay in front of vLLM engines."""

    model_config = SettingsConfigDict(
        env_prefix="ORCH_",
        extra="forbid",
        allow_inf_nan=False,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_prog_name="orch sidecar",
    )
    # Set by the command line before the settings are built: what the file holds.
    file_values: ClassVar[dict[str, Any]] = {}

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    admin_host: str = Field("127.0.0.1", description="address for operators to drain pools at")
    admin_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="port for that; 0 takes a free one; unset: 1000 above port if that is free",
    )
    admin_allowed_hosts: list[str] = Field(
        default=[],
        description="names by which operators may call that address, besides admin_host and those "
        "of the loopback: a JSON list",
    )
    engine_url: str = Field("http://127.0.0.1:8000", description="where the engine listens")
    engine_api_key: SecretStr | None = Field(
        None,
        description="key of an engine that has one; clients' Authorization is then not forwarded",
    )
    api_keys_file: Path | None = Field(
        None,
        description="file of clients' API keys, as `orch key` prints them; unset, or no such file: "
        "no key is asked for",
    )
    profile: str = Field("home", description="profile, by name or path; the engine's must be it")
    pools: list[PoolSettings] | None = Field(
        None,
        min_length=1,
        description="several engines instead of the one: a JSON list of objects with name, url, "
        "profile and, where needed, api_key, tier (true: it is a sidecar itself), below (which "
        "pool of that sidecar), headless (true: each address of that name is one) and on_request "
        "(true: takes only what asks for it)",
    )
    queue_capacity: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="waiting requests at most, of each class; unset: the profile's",
    )
    queue_timeout_s: float | None = Field(
        None, gt=0, le=86_400, description="longest wait for a slot, seconds; unset: the profile's"
    )
    max_body_bytes: int = Field(
        16 * 2**20, ge=1024, le=2**31, description="largest request body, bytes"
    )
    body_budget_bytes: int = Field(
        256 * 2**20,
        ge=1024,
        description="bodies of all requests together at most, read, waiting and in flight, bytes",
    )
    max_connections: int | None = Field(
        None,
        ge=1,
        description="connections of clients at most; unset, and where it is more: half of what the "
        "hard limit of descriptors leaves beyond 128",
    )
    max_header_bytes: int = Field(
        16_384, ge=1024, le=2**20, description="largest request line or header field, bytes"
    )
    max_json_depth: int = Field(
        64, ge=4, le=512, description="deepest nesting of a request body, levels"
    )
    body_timeout_s: float = Field(
        30.0, gt=0, description="longest time for a request body to arrive, seconds"
    )
    connect_timeout_s: float = Field(
        5.0, gt=0, description="longest time to connect to the engine, seconds"
    )
    engine_silence_s: float = Field(
        600.0, gt=0, description="engine sends nothing for so long: the request fails, seconds"
    )
    client_stall_s: float = Field(
        120.0, gt=0, description="client reads nothing for so long: it is dropped, seconds"
    )
    drain_timeout_s: float = Field(
        60.0, ge=0, description="after SIGTERM, time for what runs to end, seconds"
    )
    log_level: str = Field(
        "INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="least severe level logged"
    )

    _url = field_validator("engine_url")(_origin)
    _key = field_validator("engine_api_key")(_header_value)

    @model_validator(mode="after")
    def _largest_body_fits_the_budget(self) -> SidecarSettings:
        if self.body_budget_bytes < self.max_body_bytes:
            raise ValueError(
                f"body_budget_bytes ({self.body_budget_bytes}) must be at least max_body_bytes "
                f"({self.max_body_bytes}): a body of that size would never be read"
            )
        return self

    @field_validator("admin_allowed_hosts")
    @classmethod
    def _hosts_are_names(cls, value: list[str]) -> list[str]:
        for host in value:
            if not re.fullmatch(_HOST, host):
                raise ValueError(
                    f"{host[:80]!r} must be a name or an address as in a URL, without port and "
                    "scheme"
                )
        return value

    @field_validator("pools")
    @classmethod
    def _names_differ(cls, value: list[PoolSettings] | None) -> list[PoolSettings] | None:
        names = [pool.name for pool in value or ()]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(
                f"the names of pools must differ: {', '.join(repeated)} is given twice"
            )
        for pool in value or ():
            taken = [name for name in names if re.fullmatch(rf"{pool.name}-[0-9]+", name)]
            if pool.headless and taken:
                raise ValueError(
                    f"the pool {taken[0]!r} is named like an address of the headless {pool.name!r}"
                )
        if value and all(pool.on_request for pool in value):
            raise ValueError("one pool at least must take what asks for none (on_request: false)")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, InitSettingsSource(settings_cls, cls.file_values)

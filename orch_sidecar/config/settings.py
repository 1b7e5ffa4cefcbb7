"""The sidecar's settings. Precedence: flags, environment (`ORCH_…`), YAML file, defaults.

`ORCH_CONFIG` or `--config` names the file. The error for an invalid value names the setting, the
value and the rule. Several engines are configured as `pools`: a list in the file, JSON in
`ORCH_POOLS`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic.networks import IPvAnyNetwork
from pydantic_core.core_schema import ValidationInfo
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from orch_sidecar.config.pool_settings import PoolSettings, checked_url, header_value, in_home
from vllm_plugin.contracts.senders import parse_keys

_HOST: Final = r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]"


class SidecarSettings(BaseSettings):
    """Admission and relay in front of vLLM engines."""

    model_config = SettingsConfigDict(
        env_prefix="ORCH_",
        extra="forbid",
        allow_inf_nan=False,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_prog_name="orch sidecar",
        cli_exit_on_error=False,
    )
    # The content of the file; set by the command line before the settings are built.
    file_values: ClassVar[dict[str, Any]] = {}

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0: a free one")
    admin_host: str = Field(
        "127.0.0.1", description="address to listen on for operators, who drain pools there"
    )
    admin_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="port to listen on for operators; 0: a free one; unset: 1000 above port, or a "
        "free one if that is in use",
    )
    admin_allowed_hosts: list[str] = Field(
        default=[],
        description="host names by which operators may call the sidecar, besides admin_host and "
        "those of the loopback: a JSON list",
    )
    allowed_hosts: list[str] = Field(
        default=[],
        description="host names by which clients may call the sidecar, besides addresses and those "
        "of the loopback: a JSON list; unset: any, unless host is on the loopback and clients need "
        "no API keys",
    )
    allowed_origins: list[str] = Field(
        default=[],
        description="origins of web pages that may use the sidecar, such as https://chat.example: "
        "a JSON list; unset: none but its own",
    )
    engine_url: str = Field("http://127.0.0.1:8000", description="URL of the engine")
    engine_api_key: SecretStr | None = Field(
        None,
        description="API key of the engine; the Authorization of clients is then not forwarded",
    )
    sidecar_key: SecretStr | None = Field(
        None,
        description="key by which engines know this sidecar; of several, the first is sent",
    )
    api_keys_file: Path | None = Field(
        None,
        description="file of clients' API keys, as `orch key` prints them; unset: clients need no "
        "key",
    )
    api_keys_required: bool = Field(
        default=True,
        validate_default=False,  # to state it needs a file
        description="whether api_keys_file must exist; false: until it does, clients need no key; "
        "to set it to true without api_keys_file is an error",
    )
    gateways: list[IPvAnyNetwork] = Field(
        default=[],
        description="addresses and networks (10.0.0.0/8) of gateways whose fairness ids count "
        "while clients need no API keys: a JSON list",
    )
    cache_salt_file: Path | None = Field(
        None,
        description="file with a secret of at least 32 bytes, the same for all sidecars of these "
        "keys (openssl rand -hex 32): keeps the engines' prefix cache apart between keys; unset: "
        "random at each start",
    )
    parents: Literal["keys", "open"] = Field(
        "keys",
        description="sidecars above this one, which may claim slots here. keys: those with a key "
        "that has sidecar: true in api_keys_file, nobody without that file; open: all clients",
    )
    entries: int = Field(
        1,
        ge=1,
        le=10_000,
        description="number of sidecars that share these clients: each grants an equal part of a "
        "key's budgets",
    )
    profile: str = Field("home", description="profile, by name or path; must be that of the engine")
    pools: list[PoolSettings] | None = Field(
        None,
        min_length=1,
        description="several engines instead of engine_url: a JSON list of objects with name, url, "
        "profile and, optionally, api_key or api_key_file, tier, below, headless and on_request",
    )
    prefix_affinity: bool = Field(
        default=True,
        description="with several engines, prefer the one that last served the start of a prompt",
    )
    queue_capacity: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="most queued requests of each class; unset: as in the profile",
    )
    queue_timeout_s: float | None = Field(
        None,
        gt=0,
        le=86_400,
        description="longest wait for a slot, seconds; unset: as in the profile",
    )
    max_body_bytes: int = Field(
        16 * 2**20,
        ge=1024,
        le=2**31,
        description="largest request body, bytes; a larger one is a 413",
    )
    body_budget_bytes: int = Field(
        256 * 2**20,
        ge=1024,
        description="most memory for the bodies of all requests that are being read, waiting or "
        "in flight, bytes; beyond it a 503 before the body is read",
    )
    max_connections: int | None = Field(
        None,
        ge=1,
        description="most client connections; unset, or if it is higher: half of the hard limit of "
        "file descriptors beyond 128. At the limit idle connections are closed, and if none is "
        "idle, new ones",
    )
    max_header_bytes: int = Field(
        16_384,
        ge=1024,
        le=2**20,
        description="largest request line or header field, bytes; a head has at most four times as "
        "many",
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
    engine_silence_s: float | None = Field(
        None,
        gt=0,
        description="time without data from the engine after which a request fails, seconds. "
        "Default: 600 while the engine reports its state, because it may be reading a long prompt. "
        "For a hung engine, which reports none: the largest of 30, 20 steps, and three times its "
        "previous silence",
    )
    client_stall_s: float = Field(
        120.0,
        gt=0,
        description="time without reading after which a client is disconnected, seconds",
    )
    drain_timeout_s: float = Field(
        60.0, ge=0, description="longest time for running requests to end after SIGTERM, seconds"
    )
    batches: str | None = Field(
        None,
        min_length=1,
        description="directory, or URL such as s3://bucket/path, for the files of /v1/files and "
        "/v1/batches; needs the extra `batch`; unset: these are not served",
    )
    batches_database: SecretStr | None = Field(
        None,
        description="URL of the database of batches: postgresql://user:password@host/name, which "
        "several sidecars share; unset: SQLite in the directory",
    )
    batches_file_bytes: int = Field(
        200 * 2**20, ge=1024, description="largest file that is uploaded for batches, bytes"
    )
    batches_quota_bytes: int = Field(
        10 * 2**30,
        ge=1024,
        description="most bytes of all files of one API key; each counts for 4096 at least",
    )
    batches_quota_rows: int = Field(
        200_000,
        ge=1,
        le=10_000_000,
        description="most rows of all batches of one API key that have not ended",
    )
    batches_keep_days: int = Field(
        30,
        ge=1,
        le=3650,
        description="days after which a batch that has ended is deleted with its output files, and "
        "with its input file unless another batch has that",
    )
    request_log: str | None = Field(
        None,
        min_length=1,
        description="file to which a JSON line per request is appended; -: standard output; "
        "unset: none",
    )
    trace_url: str | None = Field(
        None,
        description="where a trace can be looked at, for links on the page: a URL with "
        "{trace_id}, such as http://jaeger:16686/trace/{trace_id}",
    )
    log_level: str = Field(
        "INFO",
        pattern="^(DEBUG|INFO|WARNING|ERROR)$",
        description="lowest level that is logged: DEBUG, INFO, WARNING or ERROR",
    )

    _url = field_validator("engine_url")(checked_url)
    _key = field_validator("engine_api_key")(header_value)
    _paths = field_validator("api_keys_file", "cache_salt_file", "batches", "request_log")(in_home)

    @field_validator("sidecar_key")
    @classmethod
    def _first_of_the_keys(cls, value: SecretStr | None) -> SecretStr | None:
        return None if value is None else SecretStr(parse_keys(value.get_secret_value())[0])

    @model_validator(mode="after")
    def _largest_body_fits_the_budget(self) -> SidecarSettings:
        if self.body_budget_bytes < self.max_body_bytes:
            raise ValueError(
                f"body_budget_bytes ({self.body_budget_bytes}) must be at least max_body_bytes "
                f"({self.max_body_bytes}): a body of that size could never be read"
            )
        return self

    @field_validator("api_keys_required")
    @classmethod
    def _required_keys_have_a_file(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("api_keys_file") is None:
            raise ValueError(
                "must not be true while api_keys_file (ORCH_API_KEYS_FILE) is unset: set that, too"
            )
        return value

    @field_validator("trace_url")
    @classmethod
    def _trace_url_names_a_trace(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^/\s]+/\S*\{trace_id\}\S*", value):
            raise ValueError(
                "must be a URL with {trace_id} in its path: http://jaeger:16686/trace/{trace_id}"
            )
        return value

    @field_validator("admin_allowed_hosts", "allowed_hosts")
    @classmethod
    def _hosts_have_no_port(cls, value: list[str]) -> list[str]:
        for host in value:
            if not re.fullmatch(_HOST, host):
                raise ValueError(
                    f"{host[:80]!r} must be a host name or an address as in a URL, without scheme "
                    "and port"
                )
        return value

    @field_validator("allowed_origins")
    @classmethod
    def _origins_are_exact(cls, value: list[str]) -> list[str]:
        for origin in value:
            if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@*,\sA-Z]+", origin):
                raise ValueError(
                    f"{origin[:80]!r} must be an origin as browsers send it: scheme://host, or "
                    "scheme://host:port if the port is not the scheme's own, in lower case"
                )
        return value

    @field_validator("pools")
    @classmethod
    def _names_are_unique(cls, value: list[PoolSettings] | None) -> list[PoolSettings] | None:
        names = [pool.name for pool in value or ()]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(
                f"the names of pools must be unique: {', '.join(repeated)} occurs more than once"
            )
        for pool in value or ():
            taken = [name for name in names if re.fullmatch(rf"{pool.name}-[0-9]+", name)]
            if pool.headless and taken:
                raise ValueError(
                    f"the name {taken[0]!r} is reserved for an address of the headless pool "
                    f"{pool.name!r}: rename one of them"
                )
        if value and all(pool.on_request for pool in value):
            raise ValueError(
                "on_request must be false for at least one pool: no other request could be served"
            )
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

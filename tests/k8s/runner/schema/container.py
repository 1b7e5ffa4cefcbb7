"""Containers: command, environment, mounts, probes, hooks, security. Times are whole seconds."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tests.k8s.runner.schema.part import Part, Unused
from tests.k8s.runner.schema.volume import FieldRef


class KeyRef(Part):
    name: str
    key: str
    optional: bool = False


class ValueFrom(Part):
    field_ref: FieldRef | None = None
    config_map_key_ref: KeyRef | None = None
    secret_key_ref: KeyRef | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (
            sum(
                x is not None
                for x in (self.field_ref, self.config_map_key_ref, self.secret_key_ref)
            )
            != 1
        ):
            raise ValueError("exactly one of fieldRef, configMapKeyRef, secretKeyRef is needed")
        return self


class EnvVar(Part):
    name: str
    value: str | None = None
    value_from: ValueFrom | None = None

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        if self.value is not None and self.value_from is not None:
            raise ValueError(f"{self.name}: value and valueFrom exclude each other")
        return self


class NameRef(Part):
    name: str
    optional: bool = False


class EnvFrom(Part):
    prefix: str = ""
    config_map_ref: NameRef | None = None
    secret_ref: NameRef | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.config_map_ref is None) == (self.secret_ref is None):
            raise ValueError("exactly one of configMapRef, secretRef is needed")
        return self


class Port(Part):
    container_port: int = Field(ge=1, le=65535)
    name: str | None = None
    protocol: Literal["TCP"] = "TCP"


class VolumeMount(Part):
    name: str
    mount_path: str
    sub_path: str | None = None
    read_only: bool = False


class Header(Part):
    name: str
    value: str


class HttpGet(Part):
    port: int | str
    path: str = "/"
    scheme: Literal["HTTP"] = "HTTP"
    http_headers: list[Header] = Field(default_factory=list)


class Exec(Part):
    command: list[str] = Field(min_length=1)


class TcpSocket(Part):
    port: int | str


class Sleep(Part):
    seconds: int = Field(ge=0)


class Hook(Part):
    """What a preStop does: exactly one of the three."""

    exec: Exec | None = None
    http_get: HttpGet | None = None
    sleep: Sleep | None = None

    @model_validator(mode="after")
    def _one_action(self) -> Self:
        if sum(x is not None for x in (self.exec, self.http_get, self.sleep)) != 1:
            raise ValueError("exactly one of exec, httpGet, sleep is needed")
        return self


class Lifecycle(Part):
    pre_stop: Hook | None = None


class Probe(Part):
    """The API server's defaults stand here."""

    exec: Exec | None = None
    http_get: HttpGet | None = None
    tcp_socket: TcpSocket | None = None
    initial_delay_seconds: int = Field(default=0, ge=0)
    period_seconds: int = Field(default=10, ge=1)
    timeout_seconds: int = Field(default=1, ge=1)
    success_threshold: int = Field(default=1, ge=1)
    failure_threshold: int = Field(default=3, ge=1)
    termination_grace_period_seconds: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_action(self) -> Self:
        if sum(x is not None for x in (self.exec, self.http_get, self.tcp_socket)) != 1:
            raise ValueError("exactly one of exec, httpGet, tcpSocket is needed")
        return self


class Capabilities(Part):
    drop: list[str] = Field(default_factory=list)
    add: list[str] = Field(default_factory=list)


class ContainerSecurity(Part):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    read_only_root_filesystem: bool = False
    allow_privilege_escalation: bool = True
    capabilities: Capabilities = Capabilities()
    privileged: Literal[False] = False
    seccomp_profile: Unused = None
    app_armor_profile: Unused = None


class Container(Part):
    name: str
    image: str
    command: list[str] | None = None
    args: list[str] | None = None
    working_dir: str | None = None
    env: list[EnvVar] = Field(default_factory=list)
    env_from: list[EnvFrom] = Field(default_factory=list)
    ports: list[Port] = Field(default_factory=list)
    volume_mounts: list[VolumeMount] = Field(default_factory=list)
    startup_probe: Probe | None = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    lifecycle: Lifecycle = Lifecycle()
    security_context: ContainerSecurity = ContainerSecurity()
    restart_policy: Literal["Always"] | None = None
    resources: Unused = None
    image_pull_policy: Unused = None
    termination_message_path: Unused = None
    termination_message_policy: Unused = None

    @model_validator(mode="after")
    def _thresholds(self) -> Self:
        for name, probe in (("startup", self.startup_probe), ("liveness", self.liveness_probe)):
            if probe is not None and probe.success_threshold != 1:
                raise ValueError(f"{self.name}: a {name} probe's successThreshold must be 1")
        return self

    @property
    def probed(self) -> bool:
        """Whether it has what only a container that keeps running may have."""
        probes = (self.startup_probe, self.liveness_probe, self.readiness_probe)
        return any(probe is not None for probe in probes) or self.lifecycle.pre_stop is not None

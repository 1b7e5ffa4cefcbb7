"""A pod's spec: what is done with it here, and what is accepted without effect."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tests.k8s.runner.schema.container import Container
from tests.k8s.runner.schema.part import Part, Unused
from tests.k8s.runner.schema.volume import Volume


class PodSecurity(Part):
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    supplemental_groups: list[int] = Field(default_factory=list)
    fs_group: int | None = None
    fs_group_change_policy: Literal["Always", "OnRootMismatch"] = "Always"
    seccomp_profile: Unused = None
    app_armor_profile: Unused = None


class PodSpec(Part):
    containers: list[Container] = Field(min_length=1)
    init_containers: list[Container] = Field(default_factory=list)
    volumes: list[Volume] = Field(default_factory=list)
    security_context: PodSecurity = PodSecurity()
    termination_grace_period_seconds: int = Field(default=30, ge=0)
    # There are no service links here: a pod must do without.
    enable_service_links: Literal[False] = False
    restart_policy: Literal["Always"] = "Always"
    # There is no API server here: a pod that asks for its token is refused, none is mounted else.
    automount_service_account_token: Literal[False] | None = None
    host_network: Literal[False] = False
    host_pid: Literal[False] = Field(default=False, alias="hostPID")
    host_ipc: Literal[False] = Field(default=False, alias="hostIPC")
    dns_policy: Literal["ClusterFirst"] = "ClusterFirst"
    service_account_name: str = "default"
    # One machine, no quotas, no registry: nothing to schedule, evict or pull.
    node_selector: Unused = None
    affinity: Unused = None
    tolerations: Unused = None
    topology_spread_constraints: Unused = None
    priority_class_name: Unused = None
    runtime_class_name: Unused = None
    scheduler_name: Unused = None
    image_pull_secrets: Unused = None
    resources: Unused = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [container.name for container in (*self.init_containers, *self.containers)]
        if len(set(names)) != len(names):
            raise ValueError(f"containers' names must differ: {names}")
        volumes = [volume.name for volume in self.volumes]
        if len(set(volumes)) != len(volumes):
            raise ValueError(f"volumes' names must differ: {volumes}")
        for container in (*self.init_containers, *self.containers):
            paths = [mount.mount_path for mount in container.volume_mounts]
            if len(set(paths)) != len(paths):
                raise ValueError(f"{container.name}: mountPaths must differ: {paths}")
            for mount in container.volume_mounts:
                if mount.name not in volumes:
                    raise ValueError(f"{container.name}: no volume is named {mount.name!r}")
        for container in self.containers:
            if container.restart_policy is not None:
                raise ValueError(f"{container.name}: restartPolicy is for init containers only")
        for container in self.init_containers:
            if container.restart_policy is None and container.probed:
                raise ValueError(
                    f"{container.name}: probes and preStop need restartPolicy Always here"
                )
        return self

    @property
    def sidecars(self) -> list[Container]:
        """The native sidecars, in the order in which they start."""
        return [container for container in self.init_containers if container.restart_policy]

    def port(self, name: str) -> int | None:
        """The port that a container of this pod calls `name`."""
        for container in (*self.containers, *self.sidecars):
            for port in container.ports:
                if port.name == name:
                    return port.container_port
        return None
